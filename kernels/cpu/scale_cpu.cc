#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {
constexpr int64_t kBlock = 65536;
}

template <typename N>
void Scale(const ScaleArgs<N>& args) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i < end; i += kLanes) {
      const int64_t n = end - i;
      StoreUpTo(args.x + i, LoadUpTo(args.x + i, n) * args.factor, n);
    }
  });
}

PP_INSTANTIATE(Scale)

}  // namespace pp::kernels::PP_ISA
