// Vectors of floats for the CPU kernels, as wide as the instruction set the file is compiled for.
//
// Every *_cpu.cc is compiled once for each instruction set of isa.h, with PP_ISA naming it; what is
// defined here and there lies in namespace pp::kernels::PP_ISA, so that no inline function compiled
// for a newer processor is ever linked into the code for an older one. For the same reason these
// files use no inline function of the standard library.
//
// Loads and stores take floats, and the shorter types of numbers.h, which they widen and round.
//
// Arithmetic is that of the compilers' vector extension: a + b, a < b ? x : y, and so on.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "kernels/numbers.h"

#define PP_INLINE inline __attribute__((always_inline))
#define PP_LAMBDA __attribute__((always_inline))

namespace pp::kernels::PP_ISA {

#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX2__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

typedef float Vec __attribute__((vector_size(4 * kLanes)));
typedef int32_t Int __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Word __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Wide __attribute__((vector_size(4 * kLanes)));  // half as many lanes

typedef float UnalignedVec __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t UnalignedWord __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

PP_INLINE Vec Load(const float* p) { return *reinterpret_cast<const UnalignedVec*>(p); }
PP_INLINE void Store(float* p, Vec v) { *reinterpret_cast<UnalignedVec*>(p) = v; }
PP_INLINE void StoreWord(uint32_t* p, Word v) { *reinterpret_cast<UnalignedWord*>(p) = v; }

typedef uint16_t Half __attribute__((vector_size(2 * kLanes)));
typedef uint16_t UnalignedHalf __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

// The values of bits of N; and the bits of the nearest N.
template <TwoBytes N>
Vec Widen(Half h);
template <TwoBytes N>
Half Narrow(Vec v);

template <>
PP_INLINE Vec Widen<BFloat16>(Half h) {
  return (Vec)(__builtin_convertvector(h, Word) << 16);
}
// The nearest BFloat16s, each in the lower half of a word.
PP_INLINE Word Nearest(Vec v) {
  const Word bits = (Word)v;
  const Word nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return v == v ? nearest : (bits >> 16) | 0x40;
}
template <>
PP_INLINE Half Narrow<BFloat16>(Vec v) {
  return __builtin_convertvector(Nearest(v), Half);
}

#if defined(__AVX512F__)
template <>
PP_INLINE Vec Widen<Float16>(Half h) {
  return (Vec)_mm512_cvtph_ps((__m256i)h);
}
template <>
PP_INLINE Half Narrow<Float16>(Vec v) {
  return (Half)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
template <>
PP_INLINE Vec Widen<Float16>(Half h) {
  return (Vec)_mm256_cvtph_ps((__m128i)h);
}
template <>
PP_INLINE Half Narrow<Float16>(Vec v) {
  return (Half)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
// Below 2^-14 a value is a multiple of 2^-24; above, its exponent's bias is shifted from 15 to 127,
// and the exponent of infinities and NaNs to the top.
template <>
PP_INLINE Vec Widen<Float16>(Half h) {
  const Int bits = (Int) __builtin_convertvector(h, Word), rest = bits & 0x7fff;
  const Vec small = __builtin_convertvector(rest, Vec) * 0x1p-24f;
  const Int normal = (rest << 13) + (112 << 23), top = (rest << 13) + (224 << 23);
  const Int number = rest < 0x400 ? (Int)small : rest < 0x7c00 ? normal : top;
  return (Vec)(number | (bits & 0x8000) << 16);
}
// Adding 1/2, whose last place is 2^-24, rounds what is below 2^-14; above, half a unit is added to
// the bits, less if the value is even, and a carry goes to the exponent.
template <>
PP_INLINE Half Narrow<Float16>(Vec v) {
  const Int bits = (Int)v, rest = bits & 0x7fffffff;
  const Int small = (Int)((Vec)rest + 0.5f) - 0x3f000000;
  const Word whole = (Word)rest;
  const Int normal = (Int)((whole - (112u << 23) + 0xfff + ((whole >> 13) & 1)) >> 13);
  const Int number = rest < 0x38800000    ? small
                     : rest < 0x47800000  ? normal
                     : rest <= 0x7f800000 ? (Int){} + 0x7c00
                                          : ((rest >> 13) & 0x3ff) | 0x7e00;
  return __builtin_convertvector((Word)number | ((Word)bits >> 16 & 0x8000), Half);
}
#endif

template <TwoBytes N>
PP_INLINE Vec Load(const N* p) {
  return Widen<N>(*reinterpret_cast<const UnalignedHalf*>(p));
}
template <TwoBytes N>
PP_INLINE void Store(N* p, Vec v) {
  *reinterpret_cast<UnalignedHalf*>(p) = Narrow<N>(v);
}

// A float that is rounded to N when it is read.
template <TwoBytes N>
struct Rounded {
  float x;
};
template <TwoBytes N>
PP_INLINE Vec Load(const Rounded<N>* p) {
  return Widen<N>(Narrow<N>(Load(&p->x)));
}

PP_INLINE float ToFloat(float x) { return x; }
PP_INLINE float ToFloat(BFloat16 x) { return __builtin_bit_cast(float, uint32_t{x.bits} << 16); }
PP_INLINE float ToFloat(Float16 x) {
  Half h = {x.bits};
  return Widen<Float16>(h)[0];
}
template <TwoBytes N>
PP_INLINE float ToFloat(Rounded<N> x) {
  Vec v = {x.x};
  return Widen<N>(Narrow<N>(v))[0];
}

// The first n < kLanes lanes; the others are `rest`.
template <typename N>
PP_INLINE Vec LoadPart(const N* p, int64_t n, float rest = 0) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? ToFloat(p[i]) : rest;
  return Load(lanes);
}

PP_INLINE void StorePart(float* p, Vec v, int64_t n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}
template <TwoBytes N>
PP_INLINE void StorePart(N* p, Vec v, int64_t n) {
  const Half h = Narrow<N>(v);
  for (int i = 0; i < n; ++i) p[i].bits = h[i];
}

// Up to kLanes of `left` elements.
template <typename N>
PP_INLINE Vec LoadUpTo(const N* p, int64_t left) {
  return left >= kLanes ? Load(p) : LoadPart(p, left);
}

template <typename N>
PP_INLINE void StoreUpTo(N* p, Vec v, int64_t left) {
  left >= kLanes ? Store(p, v) : StorePart(p, v, left);
}

#if defined(__AVX512F__)
PP_INLINE Vec Broadcast(float x) { return (Vec)_mm512_set1_ps(x); }
PP_INLINE Vec Sqrt(Vec v) { return (Vec)_mm512_sqrt_ps((__m512)v); }
// Product of the low halves of each 64-bit lane.
PP_INLINE Wide MultiplyLow(Wide a, Wide b) {
  return (Wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
#elif defined(__AVX2__)
PP_INLINE Vec Broadcast(float x) { return (Vec)_mm256_set1_ps(x); }
PP_INLINE Vec Sqrt(Vec v) { return (Vec)_mm256_sqrt_ps((__m256)v); }
PP_INLINE Wide MultiplyLow(Wide a, Wide b) {
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#else
PP_INLINE Vec Broadcast(float x) { return (Vec)_mm_set1_ps(x); }
PP_INLINE Vec Sqrt(Vec v) { return (Vec)_mm_sqrt_ps((__m128)v); }
PP_INLINE Wide MultiplyLow(Wide a, Wide b) { return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b); }
#endif

// A NaN in `a` gives b; in `b` it gives b, too.
PP_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// out = a[0], b[0], a[1], b[1], ... as 64-bit lanes.
template <int... i>
PP_INLINE void InterleaveWide(Wide a, Wide b, Word (&out)[2], std::integer_sequence<int, i...>) {
  constexpr int kWide = kLanes / 2;
  out[0] = (Word)__builtin_shufflevector(a, b, (i / 2 + i % 2 * kWide)...);
  out[1] = (Word)__builtin_shufflevector(a, b, (kWide / 2 + i / 2 + i % 2 * kWide)...);
}

PP_INLINE void InterleaveWide(Wide a, Wide b, Word (&out)[2]) {
  InterleaveWide(a, b, out, std::make_integer_sequence<int, kLanes / 2>());
}

// Lane i is v[i ^ kDistance].
template <int kDistance, int... i>
PP_INLINE Vec Exchanged(Vec v, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(v, v, (i ^ kDistance)...);
}

template <int kDistance>
PP_INLINE Vec Exchanged(Vec v) {
  return Exchanged<kDistance>(v, std::make_integer_sequence<int, kLanes>());
}

// The sum of all lanes, halves added first.
template <int kWidth = kLanes / 2>
PP_INLINE float Sum(Vec v) {
  if constexpr (kWidth == 0) {
    return v[0];
  } else {
    return Sum<kWidth / 2>(v + Exchanged<kWidth>(v));
  }
}

template <int kWidth = kLanes / 2>
PP_INLINE float Largest(Vec v) {
  if constexpr (kWidth == 0) {
    return v[0];
  } else {
    return Largest<kWidth / 2>(Max(v, Exchanged<kWidth>(v)));
  }
}

// e^x to 2 units in the last place. REQUIRES: x <= 88, or NaN, which it returns. Below -87.3,
// where floats cease to be normal, it is 0.
//
// x = k ln2 + r with |r| <= ln2/2; e^r is a polynomial (Cephes expf), 2^k an exponent. Adding
// 1.5*2^23 rounds to an integer, which is then in the low bits.
PP_INLINE Vec Exp(Vec x) {
  const Vec rounder = Broadcast(12582912.0f);
  const Vec shifted = x * Broadcast(1.44269504f) + rounder;
  const Vec k = shifted - rounder;
  const Vec scale = (Vec)(((Int)shifted - (Int)rounder + 127) << 23);
  const Vec r = (x - k * Broadcast(0.693359375f)) + k * Broadcast(2.12194440e-4f);
  Vec p = Broadcast(1.9875691500e-4f);
  p = p * r + Broadcast(1.3981999507e-3f);
  p = p * r + Broadcast(8.3334519073e-3f);
  p = p * r + Broadcast(4.1665795894e-2f);
  p = p * r + Broadcast(1.6666665459e-1f);
  p = p * r + Broadcast(5.0000001201e-1f);
  p = p * (r * r) + r + Broadcast(1.0f);
  return x < Broadcast(-87.3f) ? Broadcast(0.0f) : p * scale;
}

}  // namespace pp::kernels::PP_ISA
