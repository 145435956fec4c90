// The types of activations in memory.
//
//   Float32    a float
//   BFloat16   the upper half of a float: its sign, exponent and 7 bits behind the leading one
//   Float16    IEEE 754's binary16: 5 bits of exponent, 10 behind the leading one. The largest is
//              65504, what lies nearer to 65536 becomes infinite; below 2^-14 they are 2^-24 apart
//
// Kernels that read or write activations, or gradients with respect to them, are templates of N,
// one of these. They compute in fp32 and round their output to the nearest, ties to even; a NaN
// stays one. Weights, their gradients, statistics and sums are always fp32. A further type has a
// row here, and conversions in simd.h and in both of block.h's.
#pragma once

#include <bit>
#include <cstdint>

namespace pp::kernels {

using Float32 = float;
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename N>
concept TwoBytes = sizeof(N) == 2;

// The value of these bits, without a special instruction.
inline constexpr float Widened(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline constexpr float Widened(Float16 x) {
  const uint32_t sign = uint32_t{x.bits} >> 15 << 31, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // 2^112 shifts the exponent's bias from 15 to 127, for subnormals, too.
  const float size = std::bit_cast<float>(rest << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(size));
}

}  // namespace pp::kernels

// X(N, ...) of each type; and of those that are not float, which tensor cores multiply.
#define PP_HALVES(X, ...) X(BFloat16, __VA_ARGS__) X(Float16, __VA_ARGS__)
#define PP_ACTIVATIONS(X, ...) X(Float32, __VA_ARGS__) PP_HALVES(X, __VA_ARGS__)

// After the definition of such a kernel; and the same for a GPU.
#define PP_INSTANTIATE_OF(N, Name) template void Name(const Name##Args<N>& args);
#define PP_INSTANTIATE(Name) PP_ACTIVATIONS(PP_INSTANTIATE_OF, Name)
#define PP_INSTANTIATE_CUDA_OF(N, Name) \
  template void Name(const Name##Args<N>& args, Stream stream);
#define PP_INSTANTIATE_CUDA(Name) PP_ACTIVATIONS(PP_INSTANTIATE_CUDA_OF, Name)
