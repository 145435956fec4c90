// Philox4x32-10 (Salmon et al., SC'11), many counters at a time. dropout.h defines the counters.
//
// A 32-bit word of a counter is in the low half of a 64-bit lane; the high half can hold anything,
// because a round multiplies low halves and takes both halves of the product.
#pragma once

#include <cstdint>

#include "kernels/cpu/simd.h"

namespace pp::kernels::PP_ISA {

inline constexpr int kWideLanes = kLanes / 2;
inline constexpr int kPhiloxWords = 4 * kWideLanes;  // what one call of Philox makes

struct PhiloxKey {
  uint64_t seed;
  uint32_t third, fourth;  // of the counter; the first two count the groups of four
};

// words[i] = word i%4 of counter {first + i/4, third, fourth}, for i < kPhiloxWords.
PP_INLINE void Philox(const PhiloxKey& key, uint64_t first, Word (&words)[2]) {
  Wide c0, c1, c2, c3;
  for (int i = 0; i < kWideLanes; ++i) c0[i] = first + i;
  c1 = c0 >> 32;
  c2 = (c0 ^ c0) + key.third;
  c3 = (c0 ^ c0) + key.fourth;
  const Wide m0 = (c0 ^ c0) + 0xD2511F53u, m1 = (c0 ^ c0) + 0xCD9E8D57u;
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const Wide p0 = MultiplyLow(c0, m0), p1 = MultiplyLow(c2, m1);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c1 = p1;
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const Wide low = (c0 & 0xffffffffu) | (c1 << 32), high = (c2 & 0xffffffffu) | (c3 << 32);
  InterleaveWide(low, high, words);
}

// Which elements of a sequence dropout keeps.
class DropoutMask {
 public:
  PP_INLINE DropoutMask(uint64_t seed, uint32_t site, uint32_t sequence, float p)
      : key_{seed, sequence, site},
        threshold_(static_cast<uint32_t>(static_cast<double>(p) * 4294967296.0)),
        scale_(1 / (1 - p)) {}

  // Multiplies elements [first, first + kPhiloxWords) with 0 or 1/(1-p). REQUIRES: first % 4 == 0.
  PP_INLINE void Apply(int64_t first, Vec (&x)[2]) const {
    Word words[2];
    Philox(key_, static_cast<uint64_t>(first) / 4, words);
    for (int i = 0; i < 2; ++i) x[i] = words[i] >= threshold_ ? x[i] * scale_ : Broadcast(0);
  }

  // factor[i] = 0 or 1/(1-p) for element first + i, any `first`. Writes up to kPhiloxWords more
  // than n.
  PP_INLINE void Factors(int64_t first, int64_t n, float* factor) const {
    Word words[2];
    const int64_t skip = first % 4;
    for (int64_t i = -skip; i < n; i += kPhiloxWords) {
      Philox(key_, static_cast<uint64_t>(first + i) / 4, words);
      if (skip == 0) {
        Store(factor + i, Factor(words[0]));
        Store(factor + i + kLanes, Factor(words[1]));
        continue;
      }
      float lanes[kPhiloxWords];
      Store(lanes, Factor(words[0]));
      Store(lanes + kLanes, Factor(words[1]));
      for (int j = i < 0 ? -i : 0; j < kPhiloxWords; ++j) factor[i + j] = lanes[j];
    }
  }

 private:
  PP_INLINE Vec Factor(Word word) const {
    return word >= threshold_ ? Broadcast(scale_) : Broadcast(0);
  }

  PhiloxKey key_;
  uint32_t threshold_;
  float scale_;
};

}  // namespace pp::kernels::PP_ISA
