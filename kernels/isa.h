// The CPU kernels in all the instruction sets they are compiled for.
//
// A program runs on any x86-64 processor and takes, at its start, the best set that the processor
// has. A test can run them all. To add a kernel, write void NAME(const NAMEArgs&) in NAME_cpu.cc
// and a row here.
//
//   v1  SSE2, every x86-64      v3  AVX2 and FMA      v4  AVX-512
//   amx  v4, and matrix products on the tile registers of AMX
#pragma once

#include <span>

#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bfloat16.h"
#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/draw.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "kernels/residual.h"
#include "kernels/rope.h"
#include "kernels/sum_parts.h"
#include "kernels/sum_squares.h"
#include "kernels/swiglu.h"

// clang-format off
#define PP_CPU_KERNELS(X) \
  X(AdamW)                \
  X(Add)                  \
  X(CrossEntropyJoin)     \
  X(Fill)                 \
  X(MatmulRun)            \
  X(RandomNormal)         \
  X(Scale)                \
  X(SumSquares)

// Those of activations, for both types of them (bfloat16.h).
#define PP_ACTIVATION_KERNELS(X) \
  X(AttentionBackward)           \
  X(AttentionForward)            \
  X(BiasGradient)                \
  X(CrossEntropyBackward)        \
  X(CrossEntropyForward)         \
  X(CrossEntropyPart)            \
  X(Draw)                        \
  X(Dropout)                     \
  X(EmbeddingBackward)           \
  X(EmbeddingForward)            \
  X(GeluBackward)                \
  X(GeluForward)                 \
  X(LayerNormBackward)           \
  X(LayerNormForward)            \
  X(Residual)                    \
  X(Rope)                        \
  X(SumParts)                    \
  X(SwiGluBackward)              \
  X(SwiGluForward)
// clang-format on

namespace pp::kernels {

struct MatmulRunArgs {
  MatmulShape shape;
  MatmulArgs args;
  int threads = 1;
};

#define PP_DECLARE(Name) void Name(const Name##Args& args);
#define PP_DECLARE_BOTH(Name) \
  template <typename N>       \
  void Name(const Name##Args<N>& args);
namespace v1 {
PP_CPU_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_BOTH)
}  // namespace v1
namespace v3 {
PP_CPU_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_BOTH)
}  // namespace v3
namespace v4 {
PP_CPU_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_BOTH)
}  // namespace v4
namespace amx {
PP_DECLARE(MatmulRun)
}
#undef PP_DECLARE
#undef PP_DECLARE_BOTH

// Called with the arguments of either type, it is the kernel of that type.
template <template <typename> typename Args>
struct ActivationKernel {
  void (*fp32)(const Args<float>& args);
  void (*bf16)(const Args<BFloat16>& args);

  void operator()(const Args<float>& args) const { fp32(args); }
  void operator()(const Args<BFloat16>& args) const { bf16(args); }
};

struct CpuKernels {
  const char* isa;
#define PP_POINTER(Name) void (*Name)(const Name##Args& args);
#define PP_POINTERS(Name) ActivationKernel<Name##Args> Name;
  PP_CPU_KERNELS(PP_POINTER)
  PP_ACTIVATION_KERNELS(PP_POINTERS)
#undef PP_POINTER
#undef PP_POINTERS
  // Whether fp32 sums of bfloat16 numbers are added in the order of those of floats: a GPU's thread
  // takes as many bytes at once, not as many numbers.
  enum class Order { kSame, kByType } order = Order::kSame;
};

// Those that this processor can run, the best one last.
std::span<const CpuKernels> SupportedCpuKernels();

}  // namespace pp::kernels
