// y = the nearest BFloat16 of x, for a GPU's matrix products, whose operands have one type: weights
// and biases are fp32. (A CPU's products round what they take by themselves.)
#pragma once

#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/stream.h"

namespace pp::kernels {

struct RoundArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  BFloat16* y = nullptr;     // [n], =
};

namespace cuda {

void Round(const RoundArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
