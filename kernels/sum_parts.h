// out[i] = parts[0][i] + parts[1][i] + ..., added in this order, and also[i], where there is one,
// the same. Both may be among the parts.
#pragma once

#include <cstdint>

#include "kernels/bfloat16.h"

namespace pp::kernels {

template <typename N>
struct SumPartsArgs {
  int64_t n = 0;
  int64_t count = 0;                // of parts, at least 1
  const N* const* parts = nullptr;  // each [n]
  N* out = nullptr;                 // [n], =
  N* also = nullptr;                // [n], =, or null
};

namespace cpu {

// By the calling thread alone.
template <typename N>
void SumParts(const SumPartsArgs<N>& args);

}  // namespace cpu
}  // namespace pp::kernels
