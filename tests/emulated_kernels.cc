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

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args) {
  std::vector<float> scratch(BiasScratchFloats(args.columns));
  BiasGradientArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::BiasGradient<N>(with, nullptr);
}

template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args) {
  std::vector<char> scratch(cuda::AttentionScratchBytes(args.shape));
  AttentionBackwardArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::AttentionBackward<N>(with, nullptr);
}

}  // namespace

// Two stay the CPU's: RandomNormal, as weights are made on the host, the same for every device, and
// MatmulRun, as products are the vendor's library's.
CpuKernels EmulatedKernels() {
  CpuKernels kernels = SupportedCpuKernels().front();
  kernels.isa = "an emulated GPU";
  kernels.order = CpuKernels::Order::kByType;
  kernels.probabilities = CpuKernels::Probabilities::kRounded;
#define PP_EMULATED(Name) kernels.Name = [](const Name##Args& args) { cuda::Name(args, nullptr); };
#define PP_EMULATED_BOTH(Name)                                                      \
  kernels.Name = {[](const Name##Args<float>& args) { cuda::Name(args, nullptr); }, \
                  [](const Name##Args<BFloat16>& args) { cuda::Name(args, nullptr); }};
  PP_EMULATED(AdamW)
  PP_EMULATED_BOTH(AttentionForward)
  PP_EMULATED(Add)
  PP_EMULATED(Clip)
  PP_EMULATED(CrossEntropyJoin)
  PP_EMULATED(DrawJoin)
  PP_EMULATED(Fill)
  PP_EMULATED(Scale)
  PP_EMULATED(SumSquares)
  PP_EMULATED_BOTH(CrossEntropyBackward)
  PP_EMULATED_BOTH(CrossEntropyForward)
  PP_EMULATED_BOTH(CrossEntropyPart)
  PP_EMULATED_BOTH(Draw)
  PP_EMULATED_BOTH(Dropout)
  PP_EMULATED_BOTH(EmbeddingBackward)
  PP_EMULATED_BOTH(EmbeddingForward)
  PP_EMULATED_BOTH(GeluBackward)
  PP_EMULATED_BOTH(GeluForward)
  PP_EMULATED_BOTH(LayerNormForward)
  PP_EMULATED_BOTH(Residual)
  PP_EMULATED_BOTH(Rope)
  PP_EMULATED_BOTH(SumParts)
  PP_EMULATED_BOTH(SwiGluBackward)
  PP_EMULATED_BOTH(SwiGluForward)
#undef PP_EMULATED
#undef PP_EMULATED_BOTH
  kernels.AttentionBackward = {AttentionBackward<float>, AttentionBackward<BFloat16>};
  kernels.BiasGradient = {BiasGradient<float>, BiasGradient<BFloat16>};
  kernels.LayerNormBackward = {LayerNormBackward<float>, LayerNormBackward<BFloat16>};
  return kernels;
}

}  // namespace pp::kernels
