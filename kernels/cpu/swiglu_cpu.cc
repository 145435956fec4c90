#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

PP_INLINE Vec Sigmoid(Vec x) {
  const Vec v = -x;
  return 1 / (1 + Exp(v > 88 ? Broadcast(88) : v));
}

}  // namespace

template <typename N>
void SwiGluForward(const SwiGluForwardArgs<N>& args) {
  ParallelFor(args.rows, [&](int64_t row, int) {
    const N *gate = args.x + 2 * row * args.columns, *up = gate + args.columns;
    N* y = args.y + row * args.columns;
    for (int64_t c = 0; c < args.columns; c += kLanes) {
      const int64_t n = args.columns - c;
      const Vec g = LoadUpTo(gate + c, n);
      StoreUpTo(y + c, g * Sigmoid(g) * LoadUpTo(up + c, n), n);
    }
  });
}

template <typename N>
void SwiGluBackward(const SwiGluBackwardArgs<N>& args) {
  ParallelFor(args.rows, [&](int64_t row, int) {
    const N *gate = args.x + 2 * row * args.columns, *up = gate + args.columns;
    const N* dy = args.dy + row * args.columns;
    N *dgate = args.dx + 2 * row * args.columns, *dup = dgate + args.columns;
    for (int64_t c = 0; c < args.columns; c += kLanes) {
      const int64_t n = args.columns - c;
      const Vec g = LoadUpTo(gate + c, n), u = LoadUpTo(up + c, n), d = LoadUpTo(dy + c, n);
      const Vec s = Sigmoid(g);
      StoreUpTo(dgate + c, d * u * (s + g * s * (1 - s)), n);
      StoreUpTo(dup + c, d * (g * s), n);
    }
  });
}

PP_INSTANTIATE(SwiGluForward)
PP_INSTANTIATE(SwiGluBackward)

}  // namespace pp::kernels::PP_ISA
