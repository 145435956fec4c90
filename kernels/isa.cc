#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pp::kernels {
namespace {

#define PP_V1(Name) v1::Name,
#define PP_V3(Name) v3::Name,
#define PP_V4(Name) v4::Name,
#define PP_V1_OF(N, Name) v1::Name<N>,
#define PP_V3_OF(N, Name) v3::Name<N>,
#define PP_V4_OF(N, Name) v4::Name<N>,
#define PP_V1_ALL(Name) {PP_ACTIVATIONS(PP_V1_OF, Name)},
#define PP_V3_ALL(Name) {PP_ACTIVATIONS(PP_V3_OF, Name)},
#define PP_V4_ALL(Name) {PP_ACTIVATIONS(PP_V4_OF, Name)},
constexpr CpuKernels kAll[] = {
    {"v1", PP_PLAIN_KERNELS(PP_V1) PP_HOST_KERNELS(PP_V1) PP_ACTIVATION_KERNELS(PP_V1_ALL)},
    {"v3", PP_PLAIN_KERNELS(PP_V3) PP_HOST_KERNELS(PP_V3) PP_ACTIVATION_KERNELS(PP_V3_ALL)},
    {"v4", PP_PLAIN_KERNELS(PP_V4) PP_HOST_KERNELS(PP_V4) PP_ACTIVATION_KERNELS(PP_V4_ALL)},
    [] {
      CpuKernels kernels = {
          "amx", PP_PLAIN_KERNELS(PP_V4) PP_HOST_KERNELS(PP_V4) PP_ACTIVATION_KERNELS(PP_V4_ALL)};
      kernels.MatmulRun = amx::MatmulRun;
      return kernels;
    }(),
};

// Whether the processor has AMX for bfloat16 and Linux grants this process its registers, which
// must be requested, as they are 8 kB more to save (Documentation/arch/x86/xstate.rst).
bool HasAmx() {
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24;
  constexpr int kAskForRegisters = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, of tile data
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kBfloat16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kAskForRegisters, kTileData) == 0;
}

// Conversions of Float16, which every processor with AVX2 has.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// The level that GCC calls -march=x86-64-v3 or -v4, as far as it matters to the kernels.
int Supported() {
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2") && HasF16c();
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 && HasAmx() ? 4 : v4 ? 3 : v3 ? 2 : 1;
}

int SupportedOnce() {
  static const int supported = Supported();
  return supported;
}

const CpuKernels& Best() {
  static const CpuKernels& best = kAll[SupportedOnce() - 1];
  return best;
}

}  // namespace

std::span<const CpuKernels> SupportedCpuKernels() {
  return std::span(kAll, static_cast<size_t>(SupportedOnce()));
}

namespace cpu {

#define PP_DISPATCH(Name) \
  void Name(const Name##Args& args) { Best().Name(args); }
PP_PLAIN_KERNELS(PP_DISPATCH)
PP_HOST_KERNELS(PP_DISPATCH)
#undef PP_DISPATCH

#define PP_DISPATCH_ALL(Name)            \
  template <typename N>                  \
  void Name(const Name##Args<N>& args) { \
    Best().Name(args);                   \
  }                                      \
  PP_INSTANTIATE(Name)
PP_ACTIVATION_KERNELS(PP_DISPATCH_ALL)
#undef PP_DISPATCH_ALL

}  // namespace cpu
}  // namespace pp::kernels
