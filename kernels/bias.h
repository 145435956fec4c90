// dbias[c] (= or +=) sum over rows r of dy[r,c], in the order of rows.
// (The forward of a bias is a post-op of the matmul.)
#pragma once

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/update.h"

namespace pp::kernels {

template <typename N>
struct BiasGradientArgs {
  int64_t rows = 0, columns = 0;
  const N* dy = nullptr;   // [rows, columns]
  float* dbias = nullptr;  // [columns], `update`
  Update update = Update::kSet;
};

namespace cpu {

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args);

}  // namespace cpu
}  // namespace pp::kernels
