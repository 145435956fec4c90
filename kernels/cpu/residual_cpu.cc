#include "kernels/cpu/masked.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

template <typename N>
void Residual(const ResidualArgs<N>& args) {
  ForEachMasked(
      args.range, args.dropout, args.out,
      [&](int64_t at, int64_t n) PP_LAMBDA { return LoadUpTo(args.y + at, n); },
      [&](Vec v, int64_t at, int64_t n) PP_LAMBDA { return LoadUpTo(args.x + at, n) + v; });
}

PP_INSTANTIATE(Residual)

}  // namespace pp::kernels::PP_ISA
