// The type of activations: of what goes from stage to stage, of what a forward saves, and of the
// gradients with respect to them. Weights, their gradients, the optimizer's state and sums are fp32
// in every case.
#pragma once

#include <cstdint>
#include <string_view>

namespace pp {

enum class Dtype : uint8_t { kFp32, kBf16 };

inline constexpr int64_t BytesOf(Dtype dtype) { return dtype == Dtype::kBf16 ? 2 : 4; }

inline constexpr std::string_view NameOf(Dtype dtype) {
  return dtype == Dtype::kBf16 ? "bf16" : "fp32";
}

// False: there is none of this name.
inline constexpr bool ParseDtype(std::string_view name, Dtype* dtype) {
  for (const Dtype each : {Dtype::kFp32, Dtype::kBf16}) {
    if (name != NameOf(each)) continue;
    *dtype = each;
    return true;
  }
  return false;
}

}  // namespace pp
