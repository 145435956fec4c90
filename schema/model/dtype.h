// The type of activations: of what is passed from stage to stage, of what a forward saves, and of
// the gradients with respect to them. Weights, their gradients, the optimizer's state and sums are
// always fp32.
#pragma once

#include <cstdint>
#include <string_view>

namespace pp {

enum class Dtype : uint8_t { kFp32, kBf16, kFp16 };

// The properties of a type, in the order of the enum.
struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
  // Its exponent range is so small that gradients are those of a scaled loss; every rank has the
  // scale after its gradient norm (kernels/loss_scale.h).
  bool scales_loss;
};
inline constexpr DtypeInfo kDtypes[] = {{Dtype::kFp32, "fp32", 4, false},
                                        {Dtype::kBf16, "bf16", 2, false},
                                        {Dtype::kFp16, "fp16", 2, true}};
inline constexpr int64_t kLossScaleBytes = 40;

inline constexpr const DtypeInfo& InfoOf(Dtype dtype) { return kDtypes[static_cast<int>(dtype)]; }
inline constexpr int64_t BytesOf(Dtype dtype) { return InfoOf(dtype).bytes; }
inline constexpr std::string_view NameOf(Dtype dtype) { return InfoOf(dtype).name; }
inline constexpr std::string_view kDtypeNames[] = {kDtypes[0].name, kDtypes[1].name,
                                                   kDtypes[2].name};

}  // namespace pp
