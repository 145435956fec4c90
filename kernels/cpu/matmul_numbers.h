// Shared by all instruction sets' products: the element types, where a block's part of A and B
// begins, and where its sums go.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/isa.h"
#include "kernels/matmul_blocks.h"

namespace pp::kernels::PP_ISA {

struct BlockPlace {
  int64_t row, rows, column, columns;
};

// Calls f<A, B, C>() with the types that `numbers` stands for.
template <typename F>
void ForNumbers(MatmulNumbers numbers, const F& f) {
  switch (numbers) {
    case MatmulNumbers::kFp32:
      return f.template operator()<float, float, float>();
    case MatmulNumbers::kBf16:
      return f.template operator()<BFloat16, Rounded<BFloat16>, BFloat16>();
    case MatmulNumbers::kBf16Sum:
      return f.template operator()<BFloat16, BFloat16, float>();
    case MatmulNumbers::kFp16:
      return f.template operator()<Float16, Rounded<Float16>, Float16>();
    case MatmulNumbers::kFp16Sum:
      return f.template operator()<Float16, Float16, float>();
  }
}

// Row `row` of op(A), column `column` of op(B).
template <typename A>
const A* RowOfA(const MatmulRunArgs& run, int64_t row) {
  const bool transposed = run.shape.operands == Operands::kTN;
  return static_cast<const A*>(run.args.a) + row * (transposed ? 1 : run.shape.lda);
}
template <typename B>
const B* ColumnOfB(const MatmulRunArgs& run, int64_t column) {
  const bool transposed = run.shape.operands == Operands::kNT;
  return static_cast<const B*>(run.args.b) + column * (transposed ? run.shape.ldb : 1);
}

// The sums of a block go to C, or, if its elements are not floats, to scratch, from where they are
// rounded when they are complete.
template <typename C>
struct OutputBlock;

template <>
struct OutputBlock<float> {
  BlockPlace at;
  float* c;  // first row and column
  int64_t ldc;
  const float *bias, *residual;  // added to the sums; null: none

  OutputBlock(const MatmulRunArgs& run, const BlockPlace& at, float*) : at(at), ldc(run.shape.ldc) {
    const int64_t first = at.row * ldc + at.column;
    c = static_cast<float*>(run.args.c) + first;
    bias = run.shape.bias == WithBias::kYes ? run.args.bias + at.column : nullptr;
    residual = run.shape.residual == WithResidual::kYes
                   ? static_cast<const float*>(run.args.residual) + first
                   : nullptr;
  }
  void Round() const {}
};

template <TwoBytes N>
struct OutputBlock<N> {
  const MatmulRunArgs& run;
  BlockPlace at;
  float* c;
  int64_t ldc;
  const float *bias = nullptr, *residual = nullptr;

  // REQUIRES: kSumsFloats at `sums`.
  OutputBlock(const MatmulRunArgs& run, const BlockPlace& at, float* sums)
      : run(run), at(at), c(sums), ldc(at.columns) {}

  void Round() const {
    const MatmulShape& shape = run.shape;
    const bool has_bias = shape.bias == WithBias::kYes;
    const bool has_residual = shape.residual == WithResidual::kYes;
    for (int64_t i = 0; i < at.rows; ++i) {
      const int64_t first = (at.row + i) * shape.ldc + at.column;
      for (int64_t j = 0; j < at.columns; j += kLanes) {
        const int64_t left = at.columns - j;
        Vec sum = LoadUpTo(c + i * ldc + j, left);
        if (has_bias) sum += LoadUpTo(run.args.bias + at.column + j, left);
        if (has_residual)
          sum += LoadUpTo(static_cast<const N*>(run.args.residual) + first + j, left);
        StoreUpTo(static_cast<N*>(run.args.c) + first + j, sum, left);
      }
    }
  }
};

}  // namespace pp::kernels::PP_ISA
