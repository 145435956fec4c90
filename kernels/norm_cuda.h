// What both norms' passes on a GPU share.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block.h"
#include "kernels/mma.h"

namespace pp::kernels::cuda {

// Whether there is a mean to take off: LayerNorm.
enum class Centre { kNo, kYes };

// What nvcc has made of these numbers is made again, rather than kept in registers, too.
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

// run of how many numbers at once rows allow, and of whether there is a mean.
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
