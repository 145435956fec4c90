// What a backward of attention does with the scores of a tile: from them to gradients.
#pragma once

#include "kernels/cuda/attention_bounds_cuda.h"
#include "kernels/cuda/attention_cuda.h"

namespace pp::kernels::cuda {

// A value for each of some queries.
template <int kCount>
struct Statistics {
  alignas(16) float lse[kCount], dots[kCount];
};

// Whether a tile may have keys after their queries.
enum class Later { kNone, kSome };

// From scores and dropout(P)'s gradient to dropout(P) and, up to the factor `scale`, S's gradient.
struct Softmax {
  float scale, unit;  // of scores, and of scores for exp2

  explicit __device__ Softmax(int64_t head_dim)
      : scale(1 / sqrtf(static_cast<float>(head_dim))), unit(scale * kLog2E) {}

  // P is 0 for keys after the query. Rows of zeros, after the last token, get some P, which is
  // multiplied by other zeros.
  template <Later kLater>
  __device__ float P(float score, float lse, int query, int key) const {
    const bool later = kLater == Later::kSome && key > query;
    return later ? 0 : Exp2(score * unit - lse * kLog2E);
  }
  static __device__ void Apply(float p, float factor, float dot, float& score, float& gradient) {
    score = p * factor;
    gradient = p * (gradient * factor - dot);
  }
};

// For all fragments of [keys][queries], of which the first ones are `key` and `query`.
template <Later kLater, int kRowTiles, int kTiles>
__device__ void ApplyByKey(const Softmax& softmax, const HeadDropout& dropout, int key, int query,
                           const Statistics<8 * kTiles>& statistics,
                           float (&scores)[kRowTiles][kTiles][4],
                           float (&gradients)[kRowTiles][kTiles][4]) {
  PP_UNROLL
  for (int n = 0; n < kTiles; ++n) {
    const int column = n * 8 + ColumnOfLane();
    const auto lse = LoadPack<2>(statistics.lse + column);
    const auto dots = LoadPack<2>(statistics.dots + column);
    PP_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      float factors[4] = {1, 1, 1, 1};
      if (dropout.key.p > 0) dropout.ByKey(key + m * 16, query + n * 8, factors);
      PP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float p = softmax.P<kLater>(scores[m][n][i], lse.at[i % 2], query + column + i % 2,
                                          key + m * 16 + i / 2 * 8 + RowOfLane());
        Softmax::Apply(p, factors[i], dots.at[i % 2], scores[m][n][i], gradients[m][n][i]);
      }
    }
  }
}

// For all fragments of [queries][keys].
template <Later kLater, int kRowTiles, int kTiles>
__device__ void ApplyByQuery(const Softmax& softmax, const HeadDropout& dropout, int query, int key,
                             const float (&lse)[kRowTiles][2], const float (&dots)[kRowTiles][2],
                             float (&scores)[kRowTiles][kTiles][4],
                             float (&gradients)[kRowTiles][kTiles][4]) {
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      float factors[4] = {1, 1, 1, 1};
      if (dropout.key.p > 0) dropout.ByQuery(query + m * 16, key + n * 8, factors);
      PP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float p = softmax.P<kLater>(scores[m][n][i], lse[m][i / 2],
                                          query + m * 16 + i / 2 * 8 + RowOfLane(),
                                          key + n * 8 + ColumnOfLane() + i % 2);
        Softmax::Apply(p, factors[i], dots[m][i / 2], scores[m][n][i], gradients[m][n][i]);
      }
    }
  }
}

template <int kCount>
__device__ void LoadStatistics(const float* lse, const float* dots, int queries,
                               Statistics<kCount>& to) {
  const int i = Thread();
  if (i >= kCount) return;
  const int at = i < queries ? i : 0, bytes = i < queries ? 4 : 0;
  CopyAsync<4>(lse + at, bytes, to.lse + i);
  CopyAsync<4>(dots + at, bytes, to.dots + i);
}

// The first D_i of a head.
template <typename N>
__device__ float* DotsOf(const AttentionBackwardArgs<N>& a, const Head& head) {
  return static_cast<float*>(a.scratch) + head.of_query;
}

// D_i of a query, of `dim` elements: eight lanes in a row take them in packs of kSize, and all of
// them get it.
inline constexpr int kDotLanes = 8;
template <int kSize, typename N>
__device__ float Dot(const N* out, const N* dout, int64_t dim) {
  float sum = 0;
  for (int64_t c = Lane() % kDotLanes * kSize; c < dim; c += kDotLanes * kSize) {
    const auto x = LoadPack<kSize>(out + c), y = LoadPack<kSize>(dout + c);
    PP_UNROLL
    for (int i = 0; i < kSize; ++i) sum += ToFloat(x.at[i]) * ToFloat(y.at[i]);
  }
  return WarpSum<kDotLanes>(sum);
}

}  // namespace pp::kernels::cuda
