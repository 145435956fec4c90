// Loops over independent blocks of work, for the CPU kernels.
//
// What a block is depends on the shapes alone, never on the number of threads, and no two blocks
// add into one number: results have the same bits for any number of threads.
#pragma once

#include <omp.h>

#include <cstdint>

namespace pp::kernels::PP_ISA {

// Calls f(block, thread) for each block in [0, blocks), on at most `threads` threads, numbered from
// 0. Inside another parallel region, or for one block, it is a plain loop of thread 0.
template <typename F>
void ParallelFor(int64_t blocks, int threads, const F& f) {
#if defined(__SANITIZE_THREAD__)
  threads = 1;  // the sanitizer does not see how libgomp's threads wait for each other
#endif
  if (threads <= 1 || blocks <= 1 || omp_in_parallel()) {
    for (int64_t block = 0; block < blocks; ++block) f(block, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t block = 0; block < blocks; ++block) f(block, omp_get_thread_num());
}

// The same on as many threads as omp_set_num_threads allows the caller.
template <typename F>
void ParallelFor(int64_t blocks, const F& f) {
  ParallelFor(blocks, omp_get_max_threads(), f);
}

// The scratch of a thread: the first one's, or its part of the others', `floats` each.
inline float* ScratchOf(int thread, int64_t floats, void* first, void* others) {
  if (thread == 0) return static_cast<float*>(first);
  return static_cast<float*>(others) + (thread - 1) * floats;
}

// Calls f(begin, end) for the blocks of `block` elements that make up [0, n).
template <typename F>
void ParallelRanges(int64_t n, int64_t block, const F& f) {
  ParallelFor((n + block - 1) / block, [&](int64_t i, int) {
    const int64_t begin = i * block;
    f(begin, begin + block < n ? begin + block : n);
  });
}

}  // namespace pp::kernels::PP_ISA
