// Values of BFloat16 and Float16 alongside floats, for cases of kernels of both: a kernel is run
// with the same values in both types, and the results are compared.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

template <TwoBytes H>
using Halves = std::vector<H>;

// From 1 to the next value.
template <TwoBytes H>
inline constexpr double kUnit = std::is_same_v<H, BFloat16> ? 0x1p-7 : 0x1p-10;
// Between the smallest values, as far as the tests reach them.
template <TwoBytes H>
inline constexpr double kSmallest = std::is_same_v<H, BFloat16> ? 0 : 0x1p-24;

inline double NumberOf(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
// All that are not negative, in order. Infinity takes the place of the next one.
inline const Doubles& Sizes() {
  static const Doubles sizes = [] {
    Doubles made(0x7c01);
    for (int bits = 0; bits <= 0x7c00; ++bits) {
      const int exponent = bits >> 10, units = bits & 0x3ff;
      made[bits] = exponent == 0 ? units * 0x1p-24 : std::ldexp(units + 1024, exponent - 25);
    }
    return made;
  }();
  return sizes;
}
inline double NumberOf(Float16 x) {
  const int size = x.bits & 0x7fff;
  if (size > 0x7c00) return std::nan("");
  return (x.bits >> 15 != 0 ? -1 : 1) * (size == 0x7c00 ? HUGE_VAL : Sizes()[size]);
}

// To the nearest, by comparing the two neighbours.
inline void ToNearest(float x, BFloat16* out) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto low = static_cast<uint16_t>(bits >> 16);
  const uint32_t rest = bits & 0xffff;
  const bool up = rest > 0x8000 || (rest == 0x8000 && low % 2 == 1);
  *out = {static_cast<uint16_t>(std::isnan(x) ? low | 0x40 : low + up)};
}
inline void ToNearest(float x, Float16* out) {
  const double size = std::abs(double{x});
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  if (std::isnan(x)) return void(*out = {static_cast<uint16_t>(sign | 0x7e00)});
  const Doubles& sizes = Sizes();
  // The first one that is not less: not far from where x's bits are cut off.
  const int64_t cut = (std::bit_cast<uint32_t>(x) & 0x7fffffff) >> 13;
  int64_t at = size < 0x1p-14 ? static_cast<int64_t>(size * 0x1p24)
                              : std::min<int64_t>(cut - (112 << 10), 0x7c00);
  while (at < 0x7c00 && sizes[at] < size) ++at;
  if (at > 0 && size < sizes[at]) {
    const double down = size - sizes[at - 1], up = sizes[at] - size;
    if (down < up || (down == up && at % 2 == 1)) --at;
  }
  *out = {static_cast<uint16_t>(sign | at)};
}

template <TwoBytes H>
Halves<H> Narrow(const Floats& x) {
  Halves<H> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) ToNearest(x[i], &out[i]);
  return out;
}

template <TwoBytes H>
Floats Widen(const Halves<H>& x) {
  Floats out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = static_cast<float>(NumberOf(x[i]));
  return out;
}

template <TwoBytes H>
Floats Rounded(const Floats& x) {
  return Widen(Narrow<H>(x));
}

// Values that both types represent.
template <TwoBytes H>
struct Both {
  Floats floats;
  Halves<H> halves;

  explicit Both(int64_t n) : floats(n), halves(n) {}
  Both(int64_t n, uint32_t seed) : Both(Numbers(n, seed)) {}
  explicit Both(const Floats& x) : floats(Rounded<H>(x)), halves(Narrow<H>(x)) {}

  template <typename N>
  N* data() {
    if constexpr (std::is_same_v<N, float>) {
      return floats.data();
    } else {
      return halves.data();
    }
  }
};

// The distance from x to the next value, at most.
template <TwoBytes H>
double NextNumber(double x) {
  return std::abs(x) * kUnit<H> + kSmallest<H>;
}

template <TwoBytes H>
void Add(Comparison& result, const Both<H>& both) {
  const Floats want = Rounded<H>(both.floats);
  result.Add(Widen(both.halves), Doubles(want.begin(), want.end()), 0);
}

// With errors before rounding, which may move the result to the neighbouring value.
template <TwoBytes H>
void AddNear(Comparison& result, const Both<H>& both, double error) {
  const Floats want = Rounded<H>(both.floats), got = Widen(both.halves);
  for (size_t i = 0; i < want.size(); ++i)
    result.AddOne(got[i], want[i], NextNumber<H>(want[i]) + error);
}

// For what is fp32 in both: sums of at most a hundred values of order 1.
inline void AddSame(Comparison& result, const CpuKernels& kernels, const Floats& got,
                    const Floats& want) {
  const bool same = kernels.order == CpuKernels::Order::kSame;
  result.Add(got, Doubles(want.begin(), want.end()), same ? 0 : 100 * kEpsilon);
}

// f(N()) for both types.
template <TwoBytes H, typename F>
void ForBoth(const F& f) {
  f(float());
  f(H());
}

template <typename N>
int64_t Which() {
  return std::is_same_v<N, float> ? 0 : 1;
}

}  // namespace pp::kernels
