// out[i] = parts[0][i] + parts[1][i] + ..., added in this order; if there is an `also`, also[i] is
// the same. Both may be among the parts. A GPU takes at most kMostParts: their addresses are
// arguments of a kernel, which are limited to 32 KiB.
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

// On the calling thread only.
template <typename N>
void SumParts(const SumPartsArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void SumParts(const SumPartsArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
