// dbias[c] (= or +=) sum over rows r of dy[r,c], in the order of rows; on a GPU in the order of
// kBiasParts parts of them.
// (The forward of a bias is a post-op of the matmul.)
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"
#include "kernels/update.h"

namespace pp::kernels {

template <typename N>
struct BiasGradientArgs {
  int64_t rows = 0, columns = 0;
  const N* dy = nullptr;   // [rows, columns]
  float* dbias = nullptr;  // [columns], `update`
  Update update = Update::kSet;
  float* scratch = nullptr;  // on a GPU: BiasScratchFloats(columns)
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
