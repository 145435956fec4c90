// bfloat16: the upper half of a float, its sign, exponent and 7 bits behind the leading one.
//
// Kernels that read or write activations, or gradients with respect to them, are templates of N,
// the type of these numbers in memory: float or BFloat16. They compute in fp32 and round what they
// write to the nearest, of two equally near ones to the even one; a NaN stays one. Weights, their
// gradients, statistics and sums are fp32 in both.
#pragma once

#include <cstdint>

namespace pp::kernels {

struct BFloat16 {
  uint16_t bits;
};

}  // namespace pp::kernels

// Behind the definition of such a kernel.
#define PP_INSTANTIATE(Name)                         \
  template void Name(const Name##Args<float>& args); \
  template void Name(const Name##Args<BFloat16>& args);
// The same for a GPU.
#define PP_INSTANTIATE_CUDA(Name)                                   \
  template void Name(const Name##Args<float>& args, Stream stream); \
  template void Name(const Name##Args<BFloat16>& args, Stream stream);
