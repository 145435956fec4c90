#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t kBlock = 16384;
constexpr float kCubic = 0.044715f;
constexpr float kTwoRoot = 1.5957691216057308f;  // 2 * sqrt(2/pi)

// exp(-2u), with (1 + tanh u)/2 = 1/(1 + exp(-2u)), which stays accurate for large negative u.
PP_INLINE Vec ExpOfMinus2U(Vec x) {
  const Vec v = -kTwoRoot * x * (1 + kCubic * x * x);
  return Exp(v > 88 ? Broadcast(88) : v);
}

// Beyond this, GELU is 0 or x, and its slope 0 or 1, to the last bit of a normal number. (A
// comparison keeps a NaN.)
constexpr float kFar = 16;

// Far below 0: 0, and NaN for minus infinity, as by the formula.
PP_INLINE Vec Gelu(Vec x) { return (x < -kFar ? x * 0 : x) / (1 + ExpOfMinus2U(x)); }

PP_INLINE Vec GeluSlope(Vec x) {
  x = x > kFar ? Broadcast(kFar) : x;  // its square must not overflow
  x = x < -kFar ? Broadcast(-kFar) : x;
  const Vec e = ExpOfMinus2U(x);
  const Vec s = 1 / (1 + e);  // and e*s = 1 - s
  return s + x * s * (e * s) * (kTwoRoot * (1 + 3 * kCubic * x * x));
}

}  // namespace

template <typename N>
void GeluForward(const GeluForwardArgs<N>& args) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i + kLanes <= end; i += kLanes) Store(args.y + i, Gelu(Load(args.x + i)));
    if (i < end) StorePart(args.y + i, Gelu(LoadPart(args.x + i, end - i)), end - i);
  });
}

template <typename N>
void GeluBackward(const GeluBackwardArgs<N>& args) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i + kLanes <= end; i += kLanes) {
      Store(args.dx + i, Load(args.dy + i) * GeluSlope(Load(args.x + i)));
    }
    if (i < end) {
      const int64_t n = end - i;
      StorePart(args.dx + i, LoadPart(args.dy + i, n) * GeluSlope(LoadPart(args.x + i, n)), n);
    }
  });
}

PP_INSTANTIATE(GeluForward)
PP_INSTANTIATE(GeluBackward)

}  // namespace pp::kernels::PP_ISA
