// out[i] = parts[0][i] + parts[1][i] + ..., added in this order, and also[i], where there is one,
// the same. Both may be among the parts. A GPU takes kMostParts at most:
// their addresses are arguments of a kernel, which may have 32 KiB of them.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

inline constexpr int kMostParts = 2048;

template <typename N>
struct SumPartsArgs {
  int64_t n = 0;
  int64_t count = 0;                // of parts, at least 1
  const N* const* parts = nullptr;  // on the host: addresses, each of [n]
  N* out = nullptr;                 // [n], =
  N* also = nullptr;                // [n], =, or null
};

namespace cpu {

// By the calling thread alone.
template <typename N>
void SumParts(const SumPartsArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void SumParts(const SumPartsArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
