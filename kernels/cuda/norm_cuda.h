// Shared by the forward and backward norm kernels on a GPU.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block/block.h"
#include "kernels/block/mma.h"

namespace pp::kernels::cuda {

// Whether there is a mean to subtract: LayerNorm.
enum class Centre { kNo, kYes };

// Makes nvcc recompute what it has derived from these values, instead of also keeping it in
// registers.
template <typename P>
__device__ void Forget(P& numbers) {
#ifdef __CUDACC__
  static_assert(sizeof(P) % sizeof(uint32_t) == 0);
  uint32_t words[sizeof(P) / sizeof(uint32_t)];
  memcpy(words, &numbers, sizeof(P));
  PP_UNROLL
  for (uint32_t& word : words) asm volatile("" : "+r"(word));
  memcpy(&numbers, words, sizeof(P));
#else
  static_cast<void>(numbers);
#endif
}

// Calls run with the number of elements per access that rows allow, and with whether there is a
// mean.
template <typename N, typename Run>
void ForSize(int64_t channels, bool centred, const Run& run) {
  constexpr int kSize = kPackSize<N>;
  if (channels % kSize == 0) {
    centred ? run.template operator()<kSize, Centre::kYes>()
            : run.template operator()<kSize, Centre::kNo>();
  } else {
    centred ? run.template operator()<1, Centre::kYes>()
            : run.template operator()<1, Centre::kNo>();
  }
}

}  // namespace pp::kernels::cuda
