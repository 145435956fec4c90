// The CPU kernels in all the instruction sets they are compiled for.
//
// A program runs on any x86-64 processor and takes, at its start, the best set that the processor
// has. A test can run them all.
//
//   v1  SSE2, every x86-64      v3  AVX2 and FMA      v4  AVX-512
//   amx  v4, and matrix products on the tile registers of AMX
#pragma once

#include <span>

#include "kernels/kernels.h"

namespace pp::kernels {

#define PP_DECLARE(Name) void Name(const Name##Args& args);
#define PP_DECLARE_ALL(Name) \
  template <typename N>      \
  void Name(const Name##Args<N>& args);
namespace v1 {
PP_PLAIN_KERNELS(PP_DECLARE)
PP_HOST_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_ALL)
}  // namespace v1
namespace v3 {
PP_PLAIN_KERNELS(PP_DECLARE)
PP_HOST_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_ALL)
}  // namespace v3
namespace v4 {
PP_PLAIN_KERNELS(PP_DECLARE)
PP_HOST_KERNELS(PP_DECLARE)
PP_ACTIVATION_KERNELS(PP_DECLARE_ALL)
}  // namespace v4
namespace amx {
PP_DECLARE(MatmulRun)
using v4::GeluBackward;
using v4::GeluForward;
}  // namespace amx
#undef PP_DECLARE
#undef PP_DECLARE_ALL

// Called with the arguments of a type, it is the kernel of that type.
template <template <typename> typename Args>
struct ActivationKernel {
#define PP_OF(N, ...)                  \
  void (*of_##N)(const Args<N>& args); \
  void operator()(const Args<N>& args) const { of_##N(args); }
  PP_ACTIVATIONS(PP_OF)
#undef PP_OF
};

struct CpuKernels {
  const char* isa;
#define PP_POINTER(Name) void (*Name)(const Name##Args& args);
#define PP_POINTERS(Name) ActivationKernel<Name##Args> Name;
  PP_PLAIN_KERNELS(PP_POINTER)
  PP_HOST_KERNELS(PP_POINTER)
  PP_ACTIVATION_KERNELS(PP_POINTERS)
#undef PP_POINTER
#undef PP_POINTERS
  // Whether fp32 sums of shorter elements are added in the same order as those of floats: a GPU's
  // thread loads a fixed number of bytes, not of elements.
  enum class Order { kSame, kByType } order = Order::kSame;
  // Whether attention with shorter elements multiplies its probabilities and their gradients in
  // fp32, or rounded to that type: a GPU's tensor cores take both factors rounded.
  enum class Probabilities { kFp32, kRounded } probabilities = Probabilities::kFp32;
  // Whether a product may be rounded to its result's type before a bias or C is added: cuBLASLt's
  // are, by some of its algorithms (seen on an H200, of PyTorch's addmm, too).
  enum class Products { kFp32, kRounded } products = Products::kFp32;
};

// Those that this processor supports, the best one last.
std::span<const CpuKernels> SupportedCpuKernels();

}  // namespace pp::kernels
