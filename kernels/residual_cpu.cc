#include "kernels/isa.h"
#include "kernels/masked.h"

namespace pp::kernels::PP_ISA {

void Residual(const ResidualArgs& args) {
  ForEachMasked(
      args.range, args.dropout, args.out,
      [&](int64_t at, int64_t n) PP_LAMBDA { return LoadUpTo(args.y + at, n); },
      [&](Vec v, int64_t at, int64_t n) PP_LAMBDA { return LoadUpTo(args.x + at, n) + v; });
}

}  // namespace pp::kernels::PP_ISA
