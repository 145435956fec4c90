// Loops over independent blocks of work, for the CPU kernels.
//
// How work is cut into blocks depends only on the shapes, never on the number of threads, and no
// two blocks add into one element: results have the same bits for any number of threads.
#pragma once

#include <cstdint>

#include "kernels/threads.h"

namespace pp::kernels::PP_ISA {

// Calls f(block, thread) for each block in [0, blocks), on at most `threads` threads, numbered from
// 0, each of which gets adjacent blocks. Inside another such loop it is a plain loop of thread 0.
template <typename F>
void ParallelFor(int64_t blocks, int threads, const F& f) {
  struct Loop {
    const F& f;
    int64_t blocks;
    int threads;
  } loop{f, blocks, Threads()};
  if (loop.threads > threads) loop.threads = threads;
  if (loop.threads > blocks) loop.threads = static_cast<int>(blocks);
  if (loop.threads <= 1) {
    for (int64_t block = 0; block < blocks; ++block) f(block, 0);
    return;
  }
  const auto part = [](void* data, int thread) {
    const Loop& mine = *static_cast<const Loop*>(data);
    const int64_t end = mine.blocks * (thread + 1) / mine.threads;
    for (int64_t block = mine.blocks * thread / mine.threads; block < end; ++block)
      mine.f(block, thread);
  };
  RunOnThreads(loop.threads, part, &loop);
}

// The same on as many threads as the caller has set.
template <typename F>
void ParallelFor(int64_t blocks, const F& f) {
  ParallelFor(blocks, Threads(), f);
}

// The scratch of a thread: the first one's, or its part of the helpers', `floats` each.
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
