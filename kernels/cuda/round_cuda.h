// Rounding weights on a GPU (round.h), for the kernels that need it.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/elements_cuda.h"
#include "kernels/round.h"

namespace pp::kernels::cuda {

template <Rounding kRounding>
struct RoundWeight {
  using Number = BFloat16;
  static __device__ Number Of(float x) { return Round<Number>(x); }
};

template <>
struct RoundWeight<Rounding::kFloat16> {
  using Number = Float16;
  static __device__ Number Of(float x) { return Round<Number>(x); }
};

// The lower half of a float's bits, over 65536, is how far it is from the next smaller BFloat16 (in
// magnitude) to the next larger: 16 uniform bits, added, carry out of the lower half with this
// probability.
template <>
struct RoundWeight<Rounding::kStochasticBFloat16> {
  using Number = BFloat16;
  static __device__ Number Of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    if (!finite) return Round<Number>(x);
    // The finalizer of MurmurHash3 (Appleby, 2011): each input bit changes each output bit half of
    // the time.
    uint32_t hash = bits;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    hash ^= hash >> 16;
    return {static_cast<uint16_t>((bits + (hash & 0xffff)) >> 16)};
  }
};

// to[i], ... = x, rounded. `to` is aligned to a pack's bytes.
template <Rounding kRounding, int kSize>
__device__ void StoreRounded(void* to, int64_t i, const Pack<float, kSize>& x) {
  using By = RoundWeight<kRounding>;
  Pack<typename By::Number, kSize> out;
  for (int j = 0; j < kSize; ++j) out.at[j] = By::Of(x.at[j]);
  StoreAtOnce(static_cast<typename By::Number*>(to) + i, out);
}

// Calls f.operator()<kRounding>() for it.
template <typename F>
void ForRounding(Rounding rounding, const F& f) {
  switch (rounding) {
    case Rounding::kNone:
      return f.template operator()<Rounding::kNone>();
    case Rounding::kBFloat16:
      return f.template operator()<Rounding::kBFloat16>();
    case Rounding::kFloat16:
      return f.template operator()<Rounding::kFloat16>();
    case Rounding::kStochasticBFloat16:
      return f.template operator()<Rounding::kStochasticBFloat16>();
  }
}

}  // namespace pp::kernels::cuda
