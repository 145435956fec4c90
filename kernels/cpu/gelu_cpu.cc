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
PP_INLINE Vec ByTanh(Vec x) { return (x < -kFar ? x * 0 : x) / (1 + ExpOfMinus2U(x)); }

PP_INLINE Vec SlopeByTanh(Vec x) {
  x = x > kFar ? Broadcast(kFar) : x;  // its square must not overflow
  x = x < -kFar ? Broadcast(-kFar) : x;
  const Vec e = ExpOfMinus2U(x);
  const Vec s = 1 / (1 + e);  // and e*s = 1 - s
  return s + x * s * (e * s) * (kTwoRoot * (1 + 3 * kCubic * x * x));
}

// P(x) of N(0, 1), by a polynomial in 1 / (1 + z/2) for log(erfc(z) (1 + z/2)) + z^2 with a
// relative error of 1.2e-7 (Press et al., "Numerical recipes", 6.2).
PP_INLINE Vec Distribution(Vec x) {
  constexpr float kTerms[] = {0.17087277f,  -0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f,
                              -0.18628806f, 0.09678418f,  0.37409196f, 1.00002368f};
  constexpr float kRootOfHalf = 0.70710678f;
  const Vec z = (x < 0 ? -x : x) * kRootOfHalf;
  const Vec t = 1 / (1 + 0.5f * z);
  Vec sum = Broadcast(kTerms[0]);
  for (int i = 1; i < 9; ++i) sum = sum * t + kTerms[i];
  const Vec half = 0.5f * t * Exp(sum * t - 1.26551223f - z * z);
  return x < 0 ? half : 1 - half;
}

// x, but no further from 0 than where the distribution is 0 or 1.
PP_INLINE Vec Near(Vec x) {
  x = x > kFar ? Broadcast(kFar) : x;
  return x < -kFar ? Broadcast(-kFar) : x;
}

PP_INLINE Vec Exactly(Vec x) { return (x < -kFar ? x * 0 : x) * Distribution(Near(x)); }

PP_INLINE Vec ExactSlope(Vec x) {
  constexpr float kPeak = 0.39894228f;  // 1 / sqrt(2 pi)
  x = Near(x);
  return Distribution(x) + x * kPeak * Exp(-0.5f * x * x);
}

template <typename N, typename F>
PP_INLINE void Forward(const GeluForwardArgs<N>& args, const F& f) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i + kLanes <= end; i += kLanes) Store(args.y + i, f(Load(args.x + i)));
    if (i < end) StorePart(args.y + i, f(LoadPart(args.x + i, end - i)), end - i);
  });
}

template <typename N, typename F>
PP_INLINE void Backward(const GeluBackwardArgs<N>& args, const F& slope) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i + kLanes <= end; i += kLanes)
      Store(args.dx + i, Load(args.dy + i) * slope(Load(args.x + i)));
    if (i < end) {
      const int64_t n = end - i;
      StorePart(args.dx + i, LoadPart(args.dy + i, n) * slope(LoadPart(args.x + i, n)), n);
    }
  });
}

}  // namespace

template <typename N>
void GeluForward(const GeluForwardArgs<N>& args) {
  if (args.form == GeluForm::kExact)
    return Forward(args, [](Vec x) PP_LAMBDA { return Exactly(x); });
  Forward(args, [](Vec x) PP_LAMBDA { return ByTanh(x); });
}

template <typename N>
void GeluBackward(const GeluBackwardArgs<N>& args) {
  if (args.form == GeluForm::kExact)
    return Backward(args, [](Vec x) PP_LAMBDA { return ExactSlope(x); });
  Backward(args, [](Vec x) PP_LAMBDA { return SlopeByTanh(x); });
}

PP_INSTANTIATE(GeluForward)
PP_INSTANTIATE(GeluBackward)

}  // namespace pp::kernels::PP_ISA
