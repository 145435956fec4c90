#include "kernels/cpu/masked.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

template <typename N>
void Dropout(const DropoutArgs<N>& args) {
  ForEachMasked(
      args.range, args.dropout, args.out,
      [&](int64_t at, int64_t n) PP_LAMBDA { return LoadUpTo(args.x + at, n); },
      [&](Vec v, int64_t, int64_t) PP_LAMBDA { return v; });
}

PP_INSTANTIATE(Dropout)

}  // namespace pp::kernels::PP_ISA
