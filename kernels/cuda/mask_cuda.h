// Which elements dropout keeps (dropout.h), on a GPU: 0 or 1/(1-p) for each.
#pragma once

#include <cstdint>

#include "kernels/block/block.h"
#include "kernels/cuda/philox_cuda.h"
#include "kernels/dropout.h"

namespace pp::kernels::cuda {

struct Mask {
  uint64_t seed;
  uint32_t site, first_sequence;
  uint32_t threshold;  // what a word must reach; 0: all are kept
  float scale;

  // Multiplies x.at[j] by the factor of element i + j of a row. REQUIRES: kSize is 1, or both kSize
  // and i are multiples of 4.
  template <int kSize>
  __device__ void Apply(int64_t row, int64_t i, Pack<float, kSize>& x) const {
    if (threshold == 0) return;
    const uint32_t sequence = first_sequence + static_cast<uint32_t>(row);
    uint32_t words[4];
    if constexpr (kSize == 1) {
      Philox(seed, static_cast<uint64_t>(i) / 4, sequence, site, words);
      x.at[0] = Kept(WordOf(words, i), x.at[0]);
    } else {
      for (int j = 0; j < kSize; j += 4) {
        Philox(seed, static_cast<uint64_t>(i + j) / 4, sequence, site, words);
        for (int k = 0; k < 4; ++k) x.at[j + k] = Kept(words[k], x.at[j + k]);
      }
    }
  }

  __device__ float Kept(uint32_t word, float x) const { return word >= threshold ? x * scale : 0; }
};

inline Mask MaskOf(const DropoutKey& key) {
  return {key.seed, key.site, key.first_sequence, DropoutThreshold(key.p), 1 / (1 - key.p)};
}

}  // namespace pp::kernels::cuda
