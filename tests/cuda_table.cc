#include "tests/cuda_table.h"

#include <vector>

namespace pp::kernels {
namespace {

template <typename Args, void (*kKernel)(const Args&, cuda::Stream)>
void Run(const Args& args) {
  kKernel(args, nullptr);
  FinishKernel();
}

template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args) {
  std::vector<float> scratch(NormScratchFloats(args.channels));
  LayerNormBackwardArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::LayerNormBackward<N>(with, nullptr);
  FinishKernel();
}

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args) {
  std::vector<float> scratch(BiasScratchFloats(args.columns));
  BiasGradientArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::BiasGradient<N>(with, nullptr);
  FinishKernel();
}

template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args) {
  std::vector<char> scratch(cuda::AttentionScratchBytes(args.shape));
  AttentionBackwardArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::AttentionBackward<N>(with, nullptr);
  FinishKernel();
}

}  // namespace

CpuKernels CudaKernels() {
  CpuKernels kernels = SupportedCpuKernels().front();
  kernels.isa = "cuda";
  kernels.order = CpuKernels::Order::kByType;
  kernels.probabilities = CpuKernels::Probabilities::kRounded;
#define PP_CUDA(Name) kernels.Name = Run<Name##Args, cuda::Name>;
#define PP_CUDA_BOTH(Name)                                   \
  kernels.Name = {Run<Name##Args<float>, cuda::Name<float>>, \
                  Run<Name##Args<BFloat16>, cuda::Name<BFloat16>>};
  PP_CUDA(AdamW)
  PP_CUDA_BOTH(AttentionForward)
  PP_CUDA(Add)
  PP_CUDA(Clip)
  PP_CUDA(CrossEntropyJoin)
  PP_CUDA(DrawJoin)
  PP_CUDA(Fill)
  PP_CUDA(Scale)
  PP_CUDA(SumSquares)
  PP_CUDA_BOTH(CrossEntropyBackward)
  PP_CUDA_BOTH(CrossEntropyForward)
  PP_CUDA_BOTH(CrossEntropyPart)
  PP_CUDA_BOTH(Draw)
  PP_CUDA_BOTH(Dropout)
  PP_CUDA_BOTH(EmbeddingBackward)
  PP_CUDA_BOTH(EmbeddingForward)
  PP_CUDA_BOTH(GeluBackward)
  PP_CUDA_BOTH(GeluForward)
  PP_CUDA_BOTH(LayerNormForward)
  PP_CUDA_BOTH(Residual)
  PP_CUDA_BOTH(Rope)
  PP_CUDA_BOTH(SumParts)
  PP_CUDA_BOTH(SwiGluBackward)
  PP_CUDA_BOTH(SwiGluForward)
#undef PP_CUDA
#undef PP_CUDA_BOTH
  kernels.AttentionBackward = {AttentionBackward<float>, AttentionBackward<BFloat16>};
  kernels.BiasGradient = {BiasGradient<float>, BiasGradient<BFloat16>};
  kernels.LayerNormBackward = {LayerNormBackward<float>, LayerNormBackward<BFloat16>};
  return kernels;
}

}  // namespace pp::kernels
