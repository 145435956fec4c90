// Attention with a list of first keys on a GPU: which of the others a block's own rows see.
//
//   own rows   see                     their bounds
//   queries    keys bound .. query     first keys
//   keys       queries key .. bound    last queries, found in the list, which never decreases
//
// They are in shared memory, so that no register holds them from tile to tile. They never decrease
// from row to row, either: a warp's first and last one tell whether it sees any of a tile, and
// whether it sees all. Without a list there are none.
#pragma once

#include "kernels/cuda/attention_cuda.h"

namespace pp::kernels::cuda {

// Loads the bounds of kRows queries from `first` on, after the last token that one's again, by
// kThreads threads; complete after a barrier. Returns the first key that any of them sees.
template <int kThreads, int kRows>
__device__ int LoadFirstKeys(const FirstKeys& list, int64_t batch, int tokens, int first,
                             int (&bounds)[kRows]) {
  if (list.at == nullptr) return 0;
  const int32_t* keys = list.at + batch * list.stride;
  for (int i = Thread(); i < kRows; i += kThreads)
    bounds[i] = keys[first + i < tokens ? first + i : tokens - 1];
  return keys[first];
}

// The same of kRows keys. Returns the last query that sees any of them. All threads of the block
// take part, and when one returns the bounds are complete.
template <int kThreads, int kRows>
__device__ int LoadLastQueries(const FirstKeys& list, int64_t batch, int tokens, int first,
                               int (&bounds)[kRows]) {
  if (list.at == nullptr) return tokens - 1;
  const int32_t* keys = list.at + batch * list.stride;
  for (int i = Thread(); i < kRows; i += kThreads) {
    const int key = first + i;
    int least = key < tokens ? key : tokens - 1, most = tokens - 1;
    while (least < most) {
      const int middle = (least + most + 1) / 2;
      keys[middle] <= key ? least = middle : most = middle - 1;
    }
    bounds[i] = least;
  }
  SyncBlock();
  return bounds[kRows - 1];
}

// Scores [queries][keys] of keys before their query's first one become -inf. `first_keys`: of the
// warp's rows.
template <int kRowTiles, int kTiles>
__device__ void HideEarlierKeys(const int* first_keys, int key,
                                float (&scores)[kRowTiles][kTiles][4]) {
  if (key >= first_keys[16 * kRowTiles - 1]) return;
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int hidden = first_keys[m * 16 + h * 8 + RowOfLane()] - key - ColumnOfLane();
      PP_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        PP_UNROLL
        for (int i = 0; i < 2; ++i)
          if (n * 8 + i < hidden) scores[m][n][2 * h + i] = -INFINITY;
      }
    }
  }
}

// Scores [keys][queries] of queries after their key's last one.
template <int kRowTiles, int kTiles>
__device__ void HideLaterQueries(const int* last_queries, int query,
                                 float (&scores)[kRowTiles][kTiles][4]) {
  if (query + 8 * kTiles - 1 <= last_queries[0]) return;
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int last = last_queries[m * 16 + h * 8 + RowOfLane()] - query - ColumnOfLane();
      PP_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        PP_UNROLL
        for (int i = 0; i < 2; ++i)
          if (n * 8 + i > last) scores[m][n][2 * h + i] = -INFINITY;
      }
    }
  }
}

}  // namespace pp::kernels::cuda
