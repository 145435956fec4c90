// Sums over rows, for gradients of biases and norms: a thread takes a range of columns and goes
// down all rows, so that each sum has a fixed order.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"
#include "kernels/update.h"

namespace pp::kernels::PP_ISA {

inline constexpr int64_t kColumnRange = 512;  // sums of one range stay in the first-level cache

PP_INLINE void StoreColumns(const float* sum, int64_t n, Update update, float* out) {
  if (update == Update::kSet) {
    for (int64_t c = 0; c < n; ++c) out[c] = sum[c];
  } else {
    for (int64_t c = 0; c < n; ++c) out[c] += sum[c];
  }
}

}  // namespace pp::kernels::PP_ISA
