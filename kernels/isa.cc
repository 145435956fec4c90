#include "kernels/isa.h"

namespace pp::kernels {
namespace {

#define PP_V1(Name) v1::Name,
#define PP_V3(Name) v3::Name,
#define PP_V4(Name) v4::Name,
constexpr CpuKernels kAll[] = {
    {"v1", PP_CPU_KERNELS(PP_V1)},
    {"v3", PP_CPU_KERNELS(PP_V3)},
    {"v4", PP_CPU_KERNELS(PP_V4)},
};

// What GCC understands by -march=x86-64-v3 and -v4, as far as the kernels can tell.
int Supported() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? 3 : v3 ? 2 : 1;
}

const CpuKernels& Best() {
  static const CpuKernels& best = kAll[Supported() - 1];
  return best;
}

}  // namespace

std::span<const CpuKernels> SupportedCpuKernels() {
  return std::span(kAll, static_cast<size_t>(Supported()));
}

namespace cpu {

#define PP_DISPATCH(Name) \
  void Name(const Name##Args& args) { Best().Name(args); }
PP_CPU_KERNELS(PP_DISPATCH)
#undef PP_DISPATCH

}  // namespace cpu
}  // namespace pp::kernels
