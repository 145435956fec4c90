#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

template <typename N>
void SumParts(const SumPartsArgs<N>& args) {
  for (int64_t i = 0; i < args.n; i += kLanes) {
    const int64_t left = args.n - i;
    Vec sum = LoadUpTo(args.parts[0] + i, left);
    for (int64_t p = 1; p < args.count; ++p) sum += LoadUpTo(args.parts[p] + i, left);
    StoreUpTo(args.out + i, sum, left);
    if (args.also != nullptr) StoreUpTo(args.also + i, sum, left);
  }
}

PP_INSTANTIATE(SumParts)

}  // namespace pp::kernels::PP_ISA
