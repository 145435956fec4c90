// y = the nearest N of x, for a GPU's matrix products, whose operands have one type: weights
// and biases are fp32. (A CPU's products round what they take by themselves.)
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

template <typename N>
struct RoundArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  N* y = nullptr;            // [n], =
};

namespace cuda {

template <typename N>
void Round(const RoundArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
