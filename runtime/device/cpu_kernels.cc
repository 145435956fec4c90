#include "runtime/device/cpu_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/threads.h"
#include "runtime/device/first_keys.h"
#include "runtime/device/rope_angles.h"
#include "schema/model/layout.h"
#include "schema/model/workspace.h"

namespace pp {
namespace {

namespace cpu = kernels::cpu;

class CpuKernels : public Kernels {
 public:
  CpuKernels(const Job& job, int threads, std::byte* workspace)
      : layout_(WorkspaceOf(job)),
        bytes_((threads - 1) * layout_.kernel_bytes + (workspace == nullptr ? layout_.bytes : 0)),
        memory_(bytes_ + 2 * kAlign),
        helpers_(Aligned(memory_.data())),
        workspace_(workspace != nullptr ? workspace
                                        : Aligned(helpers_ + (threads - 1) * layout_.kernel_bytes)),
        matmul_(threads) {
    PP_CHECK(job.backend == DeviceKind::kCpu);
    const std::vector<float> angles = RopeAngles(job);
    auto* cosine = reinterpret_cast<float*>(workspace_ + layout_.angles);
    std::copy(angles.begin(), angles.end(), cosine);
    angles_ = {cosine, cosine + angles.size() / 2};
    const std::vector<int32_t> keys = FirstKeys(job);
    first_keys_ =
        keys.empty() ? nullptr : reinterpret_cast<int32_t*>(workspace_ + layout_.first_keys);
    std::copy(keys.begin(), keys.end(), first_keys_);
  }

#define PP_KERNEL(Name) \
  void Name(const kernels::Name##Args& args) override { cpu::Name(args); }
#define PP_KERNEL_OF(N, Name)                                       \
  void Name(const kernels::Name##Args<kernels::N>& args) override { \
    cpu::Name(WithWorkspace(args));                                 \
  }
#define PP_KERNEL_OF_ALL(Name) PP_ACTIVATIONS(PP_KERNEL_OF, Name)
  PP_PLAIN_KERNELS(PP_KERNEL)
  PP_ACTIVATION_KERNELS(PP_KERNEL_OF_ALL)
#undef PP_KERNEL
#undef PP_KERNEL_OF
#undef PP_KERNEL_OF_ALL

  int Prepare(const kernels::MatmulShape& shape) override { return matmul_.Prepare(shape); }
  void Multiply(int product, const kernels::MatmulArgs& args) override {
    matmul_.Run(product, WithWorkspace(args));
  }
  void Copy(const void* from, int64_t bytes, void* to) override { std::memcpy(to, from, bytes); }
  Angles angles() const override { return angles_; }
  const int32_t* first_keys() const override { return first_keys_; }
  int64_t bytes() const override { return bytes_; }

 private:
  template <typename Args>
  Args WithWorkspace(Args args) {
    if constexpr (requires { args.helpers; }) {
      args.scratch = workspace_ + layout_.kernels;
      args.helpers = helpers_;
    }
    return args;
  }

  static std::byte* Aligned(std::byte* at) {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return reinterpret_cast<std::byte*>((address + kAlign - 1) / kAlign * kAlign);
  }

  const Workspace layout_;
  const int64_t bytes_;
  std::vector<std::byte> memory_;
  std::byte *const helpers_, *const workspace_;
  Angles angles_;
  int32_t* first_keys_ = nullptr;
  cpu::Matmul matmul_;
};

}  // namespace

std::unique_ptr<Kernels> MakeCpuKernels(const Job& job, int threads, std::byte* workspace) {
  kernels::SetThreads(threads);
  return std::make_unique<CpuKernels>(job, threads, workspace);
}

}  // namespace pp
