#include "tests/kernels/cuda_table.h"

#include <deque>
#include <vector>

#include "kernels/plain_matmul.h"
#include "kernels/round.h"
#include "runtime/device/cuda/products.h"

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
void HeadNormBackward(const HeadNormBackwardArgs<N>& args) {
  std::vector<float> scratch(NormScratchFloats(args.head_dim));
  HeadNormBackwardArgs<N> with = args;
  with.scratch = scratch.data();
  cuda::HeadNormBackward<N>(with, nullptr);
  FinishKernel();
}

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args) {
  int64_t columns = 0;
  for (const BiasTensor<N>& tensor : args.tensors) columns += tensor.n;
  std::vector<float> scratch(BiasScratchFloats(columns));
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

void PlainProduct(const MatmulRunArgs& run) {
  RunProduct(run, false, [](const MatmulShape& shape, const MatmulArgs& args) {
    cuda::PlainMatmul({shape, args}, nullptr);
  });
}

}  // namespace

// A GPU's products take weights and biases in the type of activations.
void RunProduct(
    const MatmulRunArgs& run, bool fused,
    const std::function<void(const MatmulShape& shape, const MatmulArgs& args)>& multiply) {
  const MatmulShape& shape = run.shape;
  std::deque<std::vector<uint16_t>> rounded;
  MatmulArgs args = run.args;
  const bool brain = shape.numbers == MatmulNumbers::kBf16;
  const auto round = [&](const void* weights, int64_t n) -> const void* {
    void* to = rounded.emplace_back(n).data();
    cuda::Round({.n = n,
                 .x = static_cast<const float*>(weights),
                 .y = to,
                 .rounding = brain ? Rounding::kBFloat16 : Rounding::kFloat16},
                nullptr);
    return to;
  };
  if (Rounds(shape.numbers)) {
    args.b = round(args.b, NumbersOfB(shape));
    if (shape.bias == WithBias::kYes)
      args.bias = static_cast<const float*>(round(args.bias, shape.n));
  }
  if (shape.epilogue == Epilogue::kNone || fused) {
    multiply(shape, args);
  } else {
    multiply(WithoutEpilogue(shape), WithoutEpilogue(shape, args));
    RunEpilogue(shape, args, nullptr);
  }
  FinishKernel();
}

CpuKernels CudaKernels() {
  CpuKernels kernels = SupportedCpuKernels().front();
  kernels.isa = "cuda";
  kernels.MatmulRun = PlainProduct;
  kernels.order = CpuKernels::Order::kByType;
  kernels.probabilities = CpuKernels::Probabilities::kRounded;
#define PP_CUDA(Name) kernels.Name = Run<Name##Args, cuda::Name>;
#define PP_CUDA_OF(N, Name) Run<Name##Args<N>, cuda::Name<N>>,
#define PP_CUDA_ALL(Name) kernels.Name = {PP_ACTIVATIONS(PP_CUDA_OF, Name)};
#define PP_WITH_SCRATCH_OF(N, Name) Name<N>,
#define PP_WITH_SCRATCH(Name) kernels.Name = {PP_ACTIVATIONS(PP_WITH_SCRATCH_OF, Name)};
  PP_PLAIN_KERNELS(PP_CUDA)
  PP_ACTIVATION_KERNELS(PP_CUDA_ALL)
#undef PP_CUDA
  // Instead of what the lists have just set.
  PP_WITH_SCRATCH(AttentionBackward)
  PP_WITH_SCRATCH(BiasGradient)
  PP_WITH_SCRATCH(HeadNormBackward)
  PP_WITH_SCRATCH(LayerNormBackward)
#undef PP_CUDA_OF
#undef PP_CUDA_ALL
#undef PP_WITH_SCRATCH_OF
#undef PP_WITH_SCRATCH
  return kernels;
}

}  // namespace pp::kernels
