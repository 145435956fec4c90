// Attention on Hopper, for the heads of most models, of 64 or 128 elements of two bytes, without
// dropout, whose random numbers would take the registers. By products of warpgroups
// (warpgroup_mma.h), with the algorithms of attention_forward_cuda.cu and
// attention_backward_cuda.cu.
//
// A warpgroup owns 64 rows, of queries or keys, each of its warps 16 of them, and goes through
// tiles of 64 of the others, which the warpgroups of a block share: two are in shared memory, and
// the next two on their way there, so that between two barriers warpgroups can be at different
// points. While one computes exponentials, the tensor cores work for another one of the same
// multiprocessor.
#pragma once

#include "kernels/block/warpgroup_mma.h"
#include "kernels/cuda/attention_cuda.h"

namespace pp::kernels::cuda {

// Whether the current device computes these by products of warpgroups.
template <typename Args>
bool RunsByWarpgroups(const Args& args) {
  const int64_t dim = args.shape.head_dim;
  return (dim == kTileSide || dim == 2 * kTileSide) && args.dropout.p == 0 && HasWarpgroups();
}

template <TwoBytes N>
void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream);
template <TwoBytes N>
void GradientsByWarpgroups(const AttentionBackwardArgs<N>& args, Stream stream);

inline constexpr int kSide = kTileSide;

template <typename N>
struct alignas(kTileAlign) Tile {
  N at[kSide * kSide];
};

// The queries of this block, a tile for each of its warpgroups: those with the most keys start
// first, and the last block, with the fewest, has what remains.
struct Queries {
  int first, end;
};
template <int kGroups>
__device__ Queries QueriesOfBlock(int tokens) {
  const int end = ((tokens + kSide - 1) / kSide - BlockY() * kGroups) * kSide;
  const int first = end - kGroups * kSide;
  return {first > 0 ? first : 0, end < tokens ? end : tokens};
}

// 64 rows of a head of kDim elements: a tile for every 64 columns. Sums of them alike.
template <typename N, int kDim>
using HeadTiles = Tile<N>[kDim / kSide];
template <int kDim>
using HeadSums = TileSums[kDim / kSide];

// Copies 64 rows, by kThreads threads; zeros after the last one.
template <int kThreads, typename N, int kTiles>
__device__ void LoadTiles(const Rows<const N>& from, Tile<N> (&to)[kTiles]) {
  constexpr int kStep = kThreads / 8;  // rows
  // Copies alternate with products, whose sums leave no registers for addresses.
  const int thread = ThreadAnew(), row = thread / 8, column = thread % 8 * 8;
  PP_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    const N* at = from.at + row * from.stride + tile * kSide + column;
    N* there = to[tile].at + InTile(row, column);  // and a multiple of 8 rows further on
    PP_UNROLL
    for (int i = 0; i < kSide; i += kStep, at += kStep * from.stride) {
      if (kSide % kStep != 0 && row + i >= kSide) break;
      CopyAsync<16>(at, row + i < from.rows ? 16 : 0, there + i * kSide);  // of 0 nothing is read
    }
  }
}

// sums[row][column] = row `row` of a times row `column` of b.
template <typename N, int kTiles>
__device__ void MultiplyHeadRows(const Tile<N> (&a)[kTiles], const Tile<N> (&b)[kTiles],
                                 TileSums& sums) {
  MultiplyTileRows<Adds::kNo>(a[0].at, b[0].at, sums);
  PP_UNROLL
  for (int tile = 1; tile < kTiles; ++tile)
    MultiplyTileRows<Adds::kYes>(a[tile].at, b[tile].at, sums);
}

// sums[row][column] += sum over k of a[row][k] * b[k][column].
template <typename N, int kTiles>
__device__ void MultiplyHeadColumns(const TileFragments& a, const Tile<N> (&b)[kTiles],
                                    TileSums (&sums)[kTiles]) {
  PP_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) MultiplyTileColumns(a, b[tile].at, sums[tile]);
}

// Writes a warp's sums, each row times its factor, via its own 16 rows of `staging`.
template <typename N, int kTiles>
__device__ void StoreTiles(const TileSums (&sums)[kTiles], const float (&factors)[2],
                           Tile<N> (&staging)[kTiles], const Rows<N>& to) {
  const int first = Warp() % 4 * 16 * kSide;
  SyncWarp();
  PP_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    PP_UNROLL
    for (int n = 0; n < 8; ++n) {
      PP_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float *two = &sums[tile][n][2 * h], factor = factors[h];
        StorePack(staging[tile].at + first + InTile(RowOfLane() + 8 * h, n * 8 + ColumnOfLane()),
                  Pack<N, 2>{FromFloat<N>(two[0] * factor), FromFloat<N>(two[1] * factor)});
      }
    }
  }
  SyncWarp();
  PP_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    PP_UNROLL
    for (int i = Lane(); i < 16 * 8; i += kWarp) {
      const int row = i / 8, column = i % 8 * 8;
      if (row < to.rows)
        StorePack(to.at + row * to.stride + tile * kSide + column,
                  LoadPack<8>(staging[tile].at + first + InTile(row, column)));
    }
  }
}

}  // namespace pp::kernels::cuda
