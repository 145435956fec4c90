#include "tests/emulated_kernels.h"

#include <vector>

namespace pp::kernels {
namespace {

template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args) {
  std::vector<float> scratch(NormScratchFloats(args.channels));
  LayerNormBackwardArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::LayerNormBackward<N>(with, nullptr);
}

}  // namespace

CpuKernels EmulatedKernels() {
  CpuKernels kernels = SupportedCpuKernels().front();
  kernels.isa = "an emulated GPU";
  kernels.order = CpuKernels::Order::kByType;
#define PP_EMULATED(Name) kernels.Name = [](const Name##Args& args) { cuda::Name(args, nullptr); };
#define PP_EMULATED_BOTH(Name)                                                      \
  kernels.Name = {[](const Name##Args<float>& args) { cuda::Name(args, nullptr); }, \
                  [](const Name##Args<BFloat16>& args) { cuda::Name(args, nullptr); }};
  PP_EMULATED(AdamW)
  PP_EMULATED_BOTH(LayerNormForward)
#undef PP_EMULATED
#undef PP_EMULATED_BOTH
  kernels.LayerNormBackward = {LayerNormBackward<float>, LayerNormBackward<BFloat16>};
  return kernels;
}

}  // namespace pp::kernels
