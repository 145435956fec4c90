// From a job's dtype to the type of its activations in kernels (kernels/numbers.h).
#pragma once

#include "kernels/numbers.h"
#include "kernels/sum_parts.h"
#include "runtime/device/device.h"
#include "schema/base/status.h"
#include "schema/model/dtype.h"

namespace pp {

template <typename N>
inline constexpr Dtype kDtypeOf = Dtype::kFp32;
template <>
inline constexpr Dtype kDtypeOf<kernels::BFloat16> = Dtype::kBf16;
template <>
inline constexpr Dtype kDtypeOf<kernels::Float16> = Dtype::kFp16;

// f.operator()<N>() of the type.
template <typename F>
decltype(auto) ForActivations(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kFp32:
      return f.template operator()<float>();
    case Dtype::kBf16:
      return f.template operator()<kernels::BFloat16>();
    case Dtype::kFp16:
      return f.template operator()<kernels::Float16>();
  }
  PP_CHECK(false);
}

template <typename N>
kernels::SumPartsArgs<N> SumPartsOf(const SumArgs& args) {
  return {.n = args.n,
          .count = static_cast<int64_t>(args.parts.size()),
          .parts = reinterpret_cast<const N* const*>(args.parts.data()),
          .out = reinterpret_cast<N*>(args.out),
          .also = reinterpret_cast<N*>(args.also)};
}

}  // namespace pp
