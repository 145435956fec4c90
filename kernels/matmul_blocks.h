// How a matrix product is cut into blocks, and the scratch that it needs. Sizes are measured: a
// panel of B, the next one, and a chunk's rows of A and of C fit in a second-level cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul.h"

namespace pp::kernels {

inline constexpr int64_t kBlockRows = 256;
inline constexpr int64_t kBlockColumns = 768;  // a multiple of every instruction set's panel
inline constexpr int64_t kChunkDepth = 384;
// With few rows B comes from memory, and processors prefetch more of its rows than was asked for: a
// chunk is short enough that all of that is used while it is in the cache.
inline constexpr int64_t kFewRows = 128, kShortChunkDepth = 192;

// A panel of B, then, for a transposed A, a block of A.
inline constexpr int64_t kPanelFloats = kChunkDepth * 48;

// k of a product with m rows, in chunks of about the same depth, a multiple of 16.
inline constexpr int64_t ChunkDepth(int64_t m, int64_t k) {
  const int64_t most = m <= kFewRows ? kShortChunkDepth : kChunkDepth;
  const int64_t chunks = (k + most - 1) / most;
  return ((k + chunks - 1) / chunks + 15) / 16 * 16;
}

// With AMX a panel of an operand is kPanel rows, packed in tiles of kSide x kSide words, of which 2
// x (parts of an element) hold kStep steps of k. One panel of B and a block of A are kept. A float
// has three parts, a BFloat16 one.
namespace amx_blocks {

inline constexpr int64_t kRows = 256, kChunk = 384;
inline constexpr int64_t kSide = 16, kPanel = 2 * kSide, kStep = 32;
inline constexpr int64_t kTileWords = kSide * kSide;
inline constexpr int64_t kScratchWords = kChunk / kStep * 3 * 2 * kTileWords * (1 + kRows / kPanel);

}  // namespace amx_blocks

// Packed operands of one thread, enough for every instruction set.
inline constexpr int64_t kStripFloats = kChunkDepth * kBlockRows;
inline constexpr int64_t kPackedFloats = kPanelFloats + kStripFloats > amx_blocks::kScratchWords
                                             ? kPanelFloats + kStripFloats
                                             : amx_blocks::kScratchWords;
// After them, if C is rounded: the sums of a block.
inline constexpr int64_t kSumsFloats = kBlockRows * kBlockColumns;

// Scratch of one thread.
inline constexpr int64_t ScratchFloats(MatmulNumbers numbers) {
  return kPackedFloats + (Rounds(numbers) ? kSumsFloats : 0);
}

}  // namespace pp::kernels
