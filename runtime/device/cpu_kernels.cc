#include "runtime/device/cpu_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "kernels/threads.h"
#include "runtime/device/activations.h"
#include "runtime/device/attention_shape.h"
#include "runtime/device/rope_angles.h"

namespace pp {
namespace {

namespace cpu = kernels::cpu;

class CpuKernels : public Kernels {
 public:
  CpuKernels(const Job& job, int threads)
      : bytes_((threads - 1) * KernelBytes(job)), matmul_(threads), helpers_(bytes_ + kAlign) {
    const kernels::AttentionShape heads = AttentionShapeOf(job);
    const size_t most = ForActivations(job.dtype, [&]<typename N>() {
      return std::max(cpu::AttentionScratchBytes<N>(heads),
                      cpu::Matmul::ScratchBytes(kernels::kForwardNumbers<N>));
    });
    PP_CHECK(most <= static_cast<size_t>(KernelBytes(job)));
  }

#define PP_KERNEL(Name) \
  void Name(const kernels::Name##Args& args) override { cpu::Name(args); }
#define PP_KERNEL_OF(N, Name) \
  void Name(const kernels::Name##Args<kernels::N>& args) override { cpu::Name(WithHelpers(args)); }
#define PP_KERNEL_OF_ALL(Name) PP_ACTIVATIONS(PP_KERNEL_OF, Name)
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_ALL)
#undef PP_KERNEL
#undef PP_KERNEL_OF
#undef PP_KERNEL_OF_ALL

  int Prepare(const kernels::MatmulShape& shape) override { return matmul_.Prepare(shape); }
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    matmul_.Run(product, WithHelpers(args));
  }
  void Copy(const void* from, int64_t bytes, void* to) override { std::memcpy(to, from, bytes); }
  void ForgetWeights(const std::byte*, int64_t) override {}
  void Angles(const std::vector<double>& turns, int64_t tokens, float* out) override {
    RopeAngles(turns, tokens, out);
  }
  int64_t bytes() const override { return bytes_; }

 private:
  // Workspace of all threads but the first, whose workspace is in scratch.
  template <typename Args>
  Args WithHelpers(Args args) {
    if constexpr (requires { args.helpers; }) {
      const auto address = reinterpret_cast<uintptr_t>(helpers_.data());
      args.helpers = reinterpret_cast<void*>((address + kAlign - 1) / kAlign * kAlign);
    }
    return args;
  }

  const int64_t bytes_;
  cpu::Matmul matmul_;
  std::vector<std::byte> helpers_;
};

}  // namespace

std::unique_ptr<Kernels> MakeCpuKernels(const Job& job, int threads) {
  kernels::SetThreads(threads);
  return std::make_unique<CpuKernels>(job, threads);
}

}  // namespace pp
