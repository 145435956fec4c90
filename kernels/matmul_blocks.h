// How a matrix product is cut into blocks: the same for every number of threads and every
// instruction set. Sizes are measured: a panel of B, the next one, the rows of A of a chunk and
// those of C stay in a second-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pp::kernels {

inline constexpr int64_t kBlockRows = 256;
inline constexpr int64_t kBlockColumns = 768;  // divides by the panel of every instruction set
inline constexpr int64_t kChunkDepth = 384;
// With few rows B comes from memory, and processors fetch more of its rows than was asked for: a
// chunk is short enough that all of that is used while it is in the cache.
inline constexpr int64_t kFewRows = 128, kShortChunkDepth = 192;

// Scratch of one thread: a panel of B, then, for a transposed A, a block of A.
inline constexpr int64_t kPanelFloats = kChunkDepth * 48;
inline constexpr int64_t kBlockScratchFloats = kPanelFloats + kChunkDepth * kBlockRows;

// k, of a product of m rows, in chunks of about the same depth, a multiple of 16.
inline constexpr int64_t ChunkDepth(int64_t m, int64_t k) {
  const int64_t most = m <= kFewRows ? kShortChunkDepth : kChunkDepth;
  const int64_t chunks = (k + most - 1) / most;
  return ((k + chunks - 1) / chunks + 15) / 16 * 16;
}

}  // namespace pp::kernels
