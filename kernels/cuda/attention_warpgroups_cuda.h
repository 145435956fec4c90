// Attention on Hopper, for the heads of most models, of 64 elements of two bytes, without dropout,
// whose random numbers would take the registers. By products of warpgroups (warpgroup_mma.h), with
// the algorithms of attention_forward_cuda.cu and attention_backward_cuda.cu.
//
// A warpgroup owns 64 rows, of queries or keys, each of its warps 16 of them, and goes through
// tiles of 64 of the others. While one warpgroup computes exponentials, the tensor cores work for
// another one of the same multiprocessor.
#pragma once

#include "kernels/block/warpgroup_mma.h"
#include "kernels/cuda/attention_cuda.h"

namespace pp::kernels::cuda {

// Whether the current device computes these by products of warpgroups.
template <typename Args>
bool RunsByWarpgroups(const Args& args) {
  return args.shape.head_dim == kTileSide && args.dropout.p == 0 && HasWarpgroups();
}

template <TwoBytes N>
void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream);
// The scratch has the sums of dO*O already.
template <TwoBytes N>
void GradientsByWarpgroups(const AttentionBackwardArgs<N>& args, Stream stream);

inline constexpr int kSide = kTileSide;

template <typename N>
struct alignas(kTileAlign) Tile {
  N at[kSide * kSide];
};

// Copies 64 rows, by kThreads threads; zeros after the last one.
template <int kThreads, typename N>
__device__ void LoadTile(const Rows<const N>& from, Tile<N>& to) {
  constexpr int kStep = kThreads / 8;  // rows
  const int row = Thread() / 8, column = Thread() % 8 * 8;
  const N* at = from.at + row * from.stride + column;
  N* there = to.at + InTile(row, column);  // and a multiple of 8 rows further on
  PP_UNROLL
  for (int i = 0; i < kSide; i += kStep, at += kStep * from.stride)  // of 0 bytes nothing is read
    CopyAsync<16>(at, row + i < from.rows ? 16 : 0, there + i * kSide);
}

// Writes a warp's sums, each row times its factor, via `staging`: 16 rows of a tile used by this
// warp alone.
template <typename N>
__device__ void StoreTile(const TileSums& sums, const float (&factors)[2], N* staging,
                          const Rows<N>& to) {
  SyncWarp();
  PP_UNROLL
  for (int n = 0; n < 8; ++n) {
    PP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float *two = &sums[n][2 * h], factor = factors[h];
      StorePack(staging + InTile(RowOfLane() + 8 * h, n * 8 + ColumnOfLane()),
                Pack<N, 2>{FromFloat<N>(two[0] * factor), FromFloat<N>(two[1] * factor)});
    }
  }
  SyncWarp();
  PP_UNROLL
  for (int i = Lane(); i < 16 * 8; i += kWarp) {
    const int row = i / 8, column = i % 8 * 8;
    if (row < to.rows)
      StorePack(to.at + row * to.stride + column, LoadPack<8>(staging + InTile(row, column)));
  }
}

}  // namespace pp::kernels::cuda
