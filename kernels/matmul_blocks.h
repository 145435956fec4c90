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

// Scratch of one thread: a panel of B, then, for a transposed A, a block of A.
inline constexpr int64_t kPanelFloats = kChunkDepth * 48;
inline constexpr int64_t kBlockScratchFloats = kPanelFloats + kChunkDepth * kBlockRows;

// k in chunks of about the same depth, a multiple of 16, at most kChunkDepth.
inline constexpr int64_t ChunkDepth(int64_t k) {
  const int64_t chunks = (k + kChunkDepth - 1) / kChunkDepth;
  return ((k + chunks - 1) / chunks + 15) / 16 * 16;
}

}  // namespace pp::kernels
