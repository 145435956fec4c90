// What a forward of attention does with the scores of a tile of keys (FlashAttention-2).
#pragma once

#include "kernels/cuda/attention_bounds_cuda.h"
#include "kernels/cuda/attention_cuda.h"

namespace pp::kernels::cuda {

// For each row of a lane: the largest score so far, and the lane's own part of the sum of
// exp2((score - largest) * unit). Before there is one, `largest` is less than any score, but finite
// even if it is multiplied: what is hidden has an exponential of 0 then, too.
template <int kRowTiles>
struct Normalizers {
  float largest[kRowTiles][2], sum[kRowTiles][2];

  __device__ Normalizers() {
    PP_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      largest[m][0] = largest[m][1] = -0x1p126f;
      sum[m][0] = sum[m][1] = 0;
    }
  }
};

// Scores of keys after their query become -inf.
template <int kRowTiles, int kTiles>
__device__ void HideLaterKeys(int query, int key, float (&scores)[kRowTiles][kTiles][4]) {
  query += RowOfLane(), key += ColumnOfLane();
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      PP_UNROLL
      for (int i = 0; i < 4; ++i)
        if (key + n * 8 + i % 2 > query + m * 16 + i / 2 * 8) scores[m][n][i] = -INFINITY;
    }
  }
}

// Turns scores into exp2((score - largest) * unit), and rescales the sums so far if `largest` has
// grown.
template <int kRowTiles, int kTiles, int kSums>
__device__ void OnlineSoftmax(float unit, float (&scores)[kRowTiles][kTiles][4],
                              Normalizers<kRowTiles>& normalizers,
                              float (&sums)[kRowTiles][kSums][4]) {
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int h = 0; h < 2; ++h) {
      const float before = normalizers.largest[m][h];
      float largest = before;
      PP_UNROLL
      for (int n = 0; n < kTiles; ++n)
        largest = fmaxf(largest, fmaxf(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
      for (int mask = 1; mask <= 2; mask *= 2) largest = fmaxf(largest, ShuffleXor(largest, mask));
      const float correction = Exp2((before - largest) * unit), offset = largest * unit;
      float sum = normalizers.sum[m][h] * correction;
      PP_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        PP_UNROLL
        for (int i = 2 * h; i < 2 * h + 2; ++i)
          sum += scores[m][n][i] = Exp2(scores[m][n][i] * unit - offset);
      }
      PP_UNROLL
      for (int n = 0; n < kSums; ++n) {
        PP_UNROLL
        for (int i = 2 * h; i < 2 * h + 2; ++i) sums[m][n][i] *= correction;
      }
      normalizers.largest[m][h] = largest;
      normalizers.sum[m][h] = sum;
    }
  }
}

template <int kRowTiles, int kTiles>
__device__ void Drop(const HeadDropout& dropout, int query, int key,
                     float (&weights)[kRowTiles][kTiles][4]) {
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      float factors[4];
      dropout.ByQuery(query + m * 16, key + n * 8, factors);
      PP_UNROLL
      for (int i = 0; i < 4; ++i) weights[m][n][i] *= factors[i];
    }
  }
}

// lse of a warp's queries, [query, tokens), and the factors for their sums.
template <int kRowTiles>
__device__ void Finish(float scale, const Normalizers<kRowTiles>& normalizers, int queries,
                       float* lse, float (&factors)[kRowTiles][2]) {
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int h = 0; h < 2; ++h) {
      float sum = normalizers.sum[m][h];
      for (int mask = 1; mask <= 2; mask *= 2) sum += ShuffleXor(sum, mask);
      factors[m][h] = 1 / sum;
      const int row = m * 16 + h * 8 + RowOfLane();
      if (Lane() % 4 == 0 && row < queries)
        lse[row] = normalizers.largest[m][h] * scale + logf(sum);
    }
  }
}

}  // namespace pp::kernels::cuda
