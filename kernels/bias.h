// dbias[c] (= or +=) sum over rows r of dy[r,c], for several biases at once: in the order of rows;
// on a GPU by kBiasParts parts of them, of equal size, whose sums are added in a fixed tree. A bias
// gets the same bits whatever the others are.
// (The forward of a bias is a post-op of the matmul.)
#pragma once

#include <cstdint>
#include <span>

#include "kernels/numbers.h"
#include "kernels/stream.h"
#include "kernels/update.h"

namespace pp::kernels {

template <typename N>
struct BiasTensor {
  int64_t n = 0;           // columns
  const N* dy = nullptr;   // [rows, n]
  float* dbias = nullptr;  // [n], `update`
};

template <typename N>
struct BiasGradientArgs {
  int64_t rows = 0;
  std::span<const BiasTensor<N>> tensors;
  Update update = Update::kSet;
  float* scratch = nullptr;  // on a GPU: BiasScratchFloats of all tensors' columns
};

inline constexpr int kBiasParts = 64;
inline constexpr int64_t BiasScratchFloats(int64_t columns) { return kBiasParts * columns; }

namespace cpu {

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
