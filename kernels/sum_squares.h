// Of each tensor partial[i] = sum of x[j]^2 over its block i, in doubles; blocks of
// kSumSquaresBlock.
//
// The global gradient norm is the sum of the partials of all tensors in model order, so that it has
// the same bits however the tensors are spread over devices.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/stream.h"

namespace pp::kernels {

inline constexpr int64_t kSumSquaresBlock = 65536;

inline constexpr int64_t SumSquaresBlocks(int64_t n) {
  return (n + kSumSquaresBlock - 1) / kSumSquaresBlock;
}

struct SumSquaresTensor {
  int64_t n = 0;
  const float* x = nullptr;   // [n]
  double* partial = nullptr;  // [SumSquaresBlocks(n)], =
};

struct SumSquaresArgs {
  std::span<const SumSquaresTensor> tensors;
};

namespace cpu {

void SumSquares(const SumSquaresArgs& args);

}  // namespace cpu

namespace cuda {

void SumSquares(const SumSquaresArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
