// dbias[c] (= or +=) sum over rows r of dy[r,c], in the order of rows.
// (The forward of a bias is a post-op of the matmul.)
#pragma once

#include <cstdint>

#include "kernels/update.h"

namespace pp::kernels {

struct BiasGradientArgs {
  int64_t rows = 0, columns = 0;
  const float* dy = nullptr;  // [rows, columns]
  float* dbias = nullptr;     // [columns], `update`
  Update update = Update::kSet;
};

namespace cpu {

void BiasGradient(const BiasGradientArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
