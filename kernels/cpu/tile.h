// The inner loop of matrix products: a tile of C in registers.
//
//   acc[i][j] = sum over k of a(i,k) * b[k, j]     i < kRows; j < kVectors vectors of kLanes floats
//
// The sum runs over k in order, so an element has the same bits in any tile. A tile is as large as
// registers allow: 8 x 3 vectors of 32 with AVX-512, 4 x 3 of 16 otherwise.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/simd.h"

namespace pp::kernels::PP_ISA {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;
#else
inline constexpr int kTileRows = 4;
#endif
inline constexpr int kTileVectors = 3;
inline constexpr int kTileColumns = kTileVectors * kLanes;

template <int kRows, int kVectors>
struct Tile {
  Vec acc[kRows][kVectors];
};

// Steps of k between two calls of the `prefetch` below.
inline constexpr int kPrefetchSteps = 8;

// What MultiplyTile does with the rows of b besides multiplying: kYes copies row k to copy +
// k*kVectors*kLanes, which costs next to nothing, as the rows are in registers anyway.
enum class CopyRows { kNo, kYes };

// b: row k starts at b + k*ldb. `a(i, k)` is inlined; so is `prefetch()`, called now and then to
// prefetch memory that will be used later (prefetching all of it in one go would stall the
// arithmetic).
template <CopyRows kCopy = CopyRows::kNo, int kRows, int kVectors, typename A, typename Prefetch>
PP_INLINE void MultiplyTile(Tile<kRows, kVectors>& tile, const A& a, const float* b, int64_t ldb,
                            int64_t depth, const Prefetch& prefetch, float* copy = nullptr) {
#pragma GCC unroll 64
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 64
    for (int j = 0; j < kVectors; ++j) tile.acc[i][j] = Broadcast(0);
  }
  const auto step = [&](int64_t k) PP_LAMBDA {
    Vec row[kVectors];
#pragma GCC unroll 64
    for (int j = 0; j < kVectors; ++j) row[j] = Load(b + k * ldb + j * kLanes);
    if constexpr (kCopy == CopyRows::kYes) {
#pragma GCC unroll 64
      for (int j = 0; j < kVectors; ++j) Store(copy + (k * kVectors + j) * kLanes, row[j]);
    }
#pragma GCC unroll 64
    for (int i = 0; i < kRows; ++i) {
      const Vec factor = Broadcast(a(i, k));
#pragma GCC unroll 64
      for (int j = 0; j < kVectors; ++j) tile.acc[i][j] += factor * row[j];
    }
  };
  int64_t k = 0;
  for (; k + kPrefetchSteps <= depth; k += kPrefetchSteps) {
    prefetch();
#pragma GCC unroll 8
    for (int64_t i = 0; i < kPrefetchSteps; ++i) step(k + i);
  }
  for (; k < depth; ++k) step(k);
}

// Exchanges the off-diagonal blocks of size kSize of the 2*kSize x 2*kSize blocks in rows a and b.
template <int kSize, int... k>
PP_INLINE void Exchange(Vec& a, Vec& b, std::integer_sequence<int, k...>) {
  const Vec low = __builtin_shufflevector(a, b, (k & kSize ? kLanes + k - kSize : k)...);
  b = __builtin_shufflevector(a, b, (k & kSize ? kLanes + k : k + kSize)...);
  a = low;
}

template <int kSize = 1>
PP_INLINE void TransposeRows(Vec (&rows)[kLanes]) {
  if constexpr (kSize < kLanes) {
#pragma GCC unroll 64
    for (int i = 0; i < kLanes; ++i) {
      if (i & kSize) continue;
      Exchange<kSize>(rows[i], rows[i + kSize], std::make_integer_sequence<int, kLanes>());
    }
    TransposeRows<2 * kSize>(rows);
  }
}

// out[k][j] = in[j][k] for kLanes x kLanes elements; rows of `in` are ld_in apart, of `out` ld_out.
template <typename N>
PP_INLINE void Transpose(const N* in, int64_t ld_in, float* out, int64_t ld_out) {
  Vec rows[kLanes];
#pragma GCC unroll 64
  for (int i = 0; i < kLanes; ++i) rows[i] = Load(in + i * ld_in);
  TransposeRows(rows);
#pragma GCC unroll 64
  for (int i = 0; i < kLanes; ++i) Store(out + i * ld_out, rows[i]);
}

// A panel for MultiplyTile from rows of a matrix: panel[k][j] = in[j][k] for k < depth, with zeros
// for columns <= j < kWidth.
template <int64_t kWidth, typename N>
PP_INLINE void CopyTransposedPanel(const N* in, int64_t ld_in, int64_t columns, int64_t depth,
                                   float* panel) {
  for (int64_t j = 0; j < kWidth; j += kLanes) {
    int64_t k = 0;
    if (j + kLanes <= columns) {
      for (; k + kLanes <= depth; k += kLanes) {
        Transpose(in + j * ld_in + k, ld_in, panel + k * kWidth + j, kWidth);
      }
    }
    for (; k < depth; ++k) {
      for (int64_t i = j; i < j + kLanes; ++i) {
        panel[k * kWidth + i] = i < columns ? ToFloat(in[i * ld_in + k]) : 0;
      }
    }
  }
}

}  // namespace pp::kernels::PP_ISA
