// Philox4x32-10 (Salmon et al., SC'11) on a GPU: the four words of counter {group, third, fourth}.
#pragma once

#include <cstdint>

#include "kernels/block/block.h"

namespace pp::kernels::cuda {

__device__ inline void Philox(uint64_t seed, uint64_t group, uint32_t third, uint32_t fourth,
                              uint32_t (&words)[4]) {
  uint32_t c0 = static_cast<uint32_t>(group), c1 = static_cast<uint32_t>(group >> 32);
  uint32_t c2 = third, c3 = fourth;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Word i % 4 of a group, by selection: indexing would put all four into local memory.
__device__ inline uint32_t WordOf(const uint32_t (&words)[4], int64_t i) {
  const uint32_t low = i % 2 == 0 ? words[0] : words[1];
  const uint32_t high = i % 2 == 0 ? words[2] : words[3];
  return i % 4 < 2 ? low : high;
}

// An element whose word is below this is dropped: p * 2^32, which is exact.
__host__ __device__ inline uint32_t DropoutThreshold(float p) {
  return static_cast<uint32_t>(p * 4294967296.0f);
}

}  // namespace pp::kernels::cuda
