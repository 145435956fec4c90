// What attention's forward and backward on a GPU share: where a head lies, tiles in shared memory,
// products of tiles, masks.
//
// A warp owns 16 * kRowTiles rows of a matrix [rows][columns] of scores, and holds them, like all
// that it sums, as fragments C of products on tensor cores (mma.h):
//
//   sums[m][n][i] of lane 4g + t is row 16m + g + 8*(i/2), column 8n + 2t + i%2
//
// Two-byte types use tensor cores; float uses the same fragments with fp32 multiply-adds. Operands
// are in shared memory, in rows of kDim elements plus space for one more pack: an odd multiple of
// 16 bytes, so that eight rows at the same column are in different banks. Heads narrower than kDim
// are padded with zeros.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/block/block.h"
#include "kernels/block/mma.h"
#include "kernels/cuda/philox_cuda.h"

namespace pp::kernels::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;

template <typename N, int kDim>
inline constexpr int kRowStride = kDim + kPackSize<N>;

__host__ __device__ inline int64_t KvHeads(const AttentionShape& s) {
  return s.kv_heads == 0 ? s.heads : s.kv_heads;
}

// Calls run with the smallest kDim that a head fits in.
template <typename Run>
void ForDim(int64_t head_dim, const Run& run) {
  if (head_dim <= 32) return run.template operator()<32>();
  if (head_dim <= 64) return run.template operator()<64>();
  if (head_dim <= 80) return run.template operator()<80>();
  if (head_dim <= 96) return run.template operator()<96>();
  if (head_dim <= 128) return run.template operator()<128>();
  run.template operator()<kMostHeadDim>();
}

// A matrix in global memory.
template <typename N>
struct Rows {
  N* at;
  int64_t stride;
  int rows, columns;
};

// Where a head of queries, and its head of keys and values, begins: token 0.
struct Head {
  int64_t q, k, v, row;  // in packed rows, and from one to the next
  int64_t out, out_row;  // in rows of outputs
  int64_t of_query;      // in what has one value per query
  int64_t dropout;       // element of query 0 and key 0
  int tokens, dim;

  // From token `from` on: its q, k or v in packed rows, and its outputs.
  template <typename N>
  __device__ Rows<N> In(N* packed, int64_t begin, int from) const {
    return {packed + begin + from * row, row, tokens - from, dim};
  }
  template <typename N>
  __device__ Rows<N> Out(N* outputs, int from) const {
    return {outputs + out + from * out_row, out_row, tokens - from, dim};
  }
};

inline __device__ Head HeadOf(const AttentionShape& s, int64_t batch, int64_t head) {
  const int64_t kv_heads = KvHeads(s), kv = head / (s.heads / kv_heads);
  const int64_t row = (s.heads + 2 * kv_heads) * s.head_dim;
  const int64_t packed = batch * s.tokens * row;
  return {.q = packed + head * s.head_dim,
          .k = packed + (s.heads + kv) * s.head_dim,
          .v = packed + (s.heads + kv_heads + kv) * s.head_dim,
          .row = row,
          .out = (batch * s.tokens * s.heads + head) * s.head_dim,
          .out_row = s.heads * s.head_dim,
          .of_query = (batch * s.heads + head) * s.tokens,
          .dropout = (s.first_head + head) * s.tokens * s.tokens,
          .tokens = static_cast<int>(s.tokens),
          .dim = static_cast<int>(s.head_dim)};
}

// The head `heads` further on among the queries' heads that share keys and values.
inline __device__ Head LaterHead(Head head, const AttentionShape& s, int64_t heads) {
  head.q += heads * s.head_dim;
  head.out += heads * s.head_dim;
  head.of_query += heads * s.tokens;
  head.dropout += heads * s.tokens * s.tokens;
  return head;
}

inline __device__ int RowOfLane() { return Lane() / 4; }
inline __device__ int ColumnOfLane() { return Lane() % 4 * 2; }

// Copies kRows of them into shared memory, by the whole block; zeros outside the matrix. Complete
// after WaitForCopies and a barrier.
template <int kDim, int kRows, int kThreads, typename N>
__device__ void LoadRows(const Rows<const N>& from, N* to) {
  constexpr int kSize = kPackSize<N>, kPacks = kDim / kSize;
  if (from.columns % kSize == 0) {
    // Not unrolled, otherwise addresses would fill the registers.
    PP_NO_UNROLL
    for (int i = Thread(); i < kRows * kPacks; i += kThreads) {
      const int row = i / kPacks, column = i % kPacks * kSize;
      const bool inside = row < from.rows && column < from.columns;
      CopyAsync<16>(inside ? from.at + row * from.stride + column : from.at, inside ? 16 : 0,
                    to + row * kRowStride<N, kDim> + column);
    }
    return;
  }
  PP_NO_UNROLL
  for (int i = Thread(); i < kRows * kDim; i += kThreads) {
    const int row = i / kDim, column = i % kDim;
    const bool inside = row < from.rows && column < from.columns;
    to[row * kRowStride<N, kDim> + column] =
        inside ? from.at[row * from.stride + column] : FromFloat<N>(0);
  }
}

// Writes a warp's sums, each row times its factor, to global memory: via `staging`, 16 * kRowTiles
// rows of shared memory used by this warp alone.
template <int kDim, int kRowTiles, typename N>
__device__ void StoreRows(const float (&sums)[kRowTiles][kDim / 8][4],
                          const float (&factors)[kRowTiles][2], N* staging, const Rows<N>& to) {
  constexpr int kSize = kPackSize<N>, kPacks = kDim / kSize, kStride = kRowStride<N, kDim>;
  SyncWarp();  // its last products have read them
  PP_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    PP_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      PP_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float* two = &sums[m][n][2 * h];
        const float factor = factors[m][h];
        N* at = staging + (m * 16 + RowOfLane() + 8 * h) * kStride + n * 8 + ColumnOfLane();
        StorePack(at, Pack<N, 2>{FromFloat<N>(two[0] * factor), FromFloat<N>(two[1] * factor)});
      }
    }
  }
  SyncWarp();
  if (to.columns % kSize == 0) {
    for (int i = Lane(); i < 16 * kRowTiles * kPacks; i += kWarp) {
      const int row = i / kPacks, column = i % kPacks * kSize;
      if (row < to.rows && column < to.columns)
        StorePack(to.at + row * to.stride + column,
                  LoadPack<kSize>(staging + row * kStride + column));
    }
    return;
  }
  PP_NO_UNROLL
  for (int i = Lane(); i < 16 * kRowTiles * kDim; i += kWarp) {
    const int row = i / kDim, column = i % kDim;
    if (row < to.rows && column < to.columns)
      to.at[row * to.stride + column] = staging[row * kStride + column];
  }
}

// The same, all rows times one factor.
template <int kDim, int kRowTiles, typename N>
__device__ void StoreRows(const float (&sums)[kRowTiles][kDim / 8][4], float factor, N* staging,
                          const Rows<N>& to) {
  float factors[kRowTiles][2];
  for (auto& two : factors) two[0] = two[1] = factor;
  StoreRows<kDim>(sums, factors, staging, to);
}

// sums[row][column] += row `row` of a times row `column` of b, both in shared memory.
template <int kDim, int kRowTiles, int kTiles, TwoBytes N>
__device__ void MultiplyRows(const N* a, const N* b, float (&sums)[kRowTiles][kTiles][4]) {
  constexpr int kStride = kRowStride<N, kDim>;
  const int lane = Lane();
  a += lane % 16 * kStride + lane / 16 * 8;
  b += (lane / 16 * 8 + lane % 8) * kStride + lane / 8 % 2 * 8;
  PP_UNROLL
  for (int k = 0; k < kDim; k += 16) {
    FragmentA left[kRowTiles];
    PP_UNROLL
    for (int m = 0; m < kRowTiles; ++m) LoadMatrix(a + m * 16 * kStride + k, left[m].at);
    PP_UNROLL
    for (int n = 0; n < kTiles; n += 2) {
      FragmentsB right;
      LoadMatrix(b + n * 8 * kStride + k, right.at);
      PP_UNROLL
      for (int m = 0; m < kRowTiles; ++m) Mma<N>(left[m], right, sums[m][n], sums[m][n + 1]);
    }
  }
}

template <int kDim, int kRowTiles, int kTiles>
__device__ void MultiplyRows(const float* a, const float* b, float (&sums)[kRowTiles][kTiles][4]) {
  constexpr int kStride = kRowStride<float, kDim>;
  a += RowOfLane() * kStride;
  b += ColumnOfLane() * kStride;
  PP_NO_UNROLL
  for (int k = 0; k < kDim; k += 4) {
    Pack<float, 4> left[kRowTiles][2];
    PP_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PP_UNROLL
      for (int h = 0; h < 2; ++h) left[m][h] = LoadPack<4>(a + (m * 16 + h * 8) * kStride + k);
    }
    PP_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      PP_UNROLL
      for (int j = 0; j < 2; ++j) {
        const auto right = LoadPack<4>(b + (n * 8 + j) * kStride + k);
        PP_UNROLL
        for (int m = 0; m < kRowTiles; ++m) {
          PP_UNROLL
          for (int h = 0; h < 2; ++h) {
            PP_UNROLL
            for (int i = 0; i < 4; ++i) sums[m][n][2 * h + j] += left[m][h].at[i] * right.at[i];
          }
        }
      }
    }
  }
}

// sums[row][d] += sum over columns c of weights[row][c] * b[c][d], with b in shared memory. Tensor
// cores take the weights rounded.
template <int kDim, int kRowTiles, int kTiles, TwoBytes N>
__device__ void MultiplyColumns(const float (&weights)[kRowTiles][kTiles][4], const N* b,
                                float (&sums)[kRowTiles][kDim / 8][4]) {
  constexpr int kStride = kRowStride<N, kDim>;
  b += Lane() % 16 * kStride + Lane() / 16 * 8;
  PP_UNROLL
  for (int k = 0; k < kTiles; k += 2) {
    FragmentA left[kRowTiles];
    PP_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      PP_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* two = &weights[m][k + i / 2][i % 2 * 2];
        left[m].at[i] = RoundPair<N>(two[0], two[1]);
      }
    }
    PP_UNROLL
    for (int n = 0; n < kDim / 8; n += 2) {
      FragmentsB right;
      LoadMatrixTransposed(b + k * 8 * kStride + n * 8, right.at);
      PP_UNROLL
      for (int m = 0; m < kRowTiles; ++m) Mma<N>(left[m], right, sums[m][n], sums[m][n + 1]);
    }
  }
}

template <int kDim, int kRowTiles, int kTiles>
__device__ void MultiplyColumns(const float (&weights)[kRowTiles][kTiles][4], const float* b,
                                float (&sums)[kRowTiles][kDim / 8][4]) {
  constexpr int kStride = kRowStride<float, kDim>;
  b += ColumnOfLane();
  PP_UNROLL
  for (int k = 0; k < kTiles; ++k) {
    PP_NO_UNROLL
    for (int t = 0; t < 4; ++t) {  // the lane of a row that has columns 8k + 2t and 8k + 2t + 1
      float mine[kRowTiles * 4], left[kRowTiles * 4];
      PP_UNROLL
      for (int i = 0; i < kRowTiles * 4; ++i) mine[i] = weights[i / 4][k][i % 4];
      ShuffleAll(mine, RowOfLane() * 4 + t, left);
      PP_UNROLL
      for (int j = 0; j < 2; ++j) {
        PP_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          const auto right = LoadPack<2>(b + (8 * k + 2 * t + j) * kStride + n * 8);
          PP_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            PP_UNROLL
            for (int i = 0; i < 4; ++i)
              sums[m][n][i] += left[m * 4 + i / 2 * 2 + j] * right.at[i % 2];
          }
        }
      }
    }
  }
}

// Dropout of one head's probabilities. A call of Philox makes the words of four keys in a row,
// which are in different lanes: if groups of four begin at a row's first key, each lane makes one
// of the groups that it and its neighbours need.
struct HeadDropout {
  DropoutKey key;
  int64_t first, tokens;  // element (query, key) is first + query * tokens + key
  uint32_t sequence, threshold;
  float scale;

  __device__ HeadDropout(const DropoutKey& key, const Head& head, int64_t batch, int64_t tokens)
      : key(key),
        first(head.dropout),
        tokens(tokens),
        sequence(key.first_sequence + static_cast<uint32_t>(batch)),
        threshold(DropoutThreshold(key.p)),
        scale(1 / (1 - key.p)) {}

  __device__ void Words(int64_t element, uint32_t (&words)[4]) const {
    Philox(key.seed, static_cast<uint64_t>(element) / 4, sequence, key.site, words);
  }
  __device__ uint32_t Word(int64_t element) const {
    uint32_t words[4];
    Words(element, words);
    return WordOf(words, element);
  }
  __device__ void ToFactors(const uint32_t (&words)[4], float (&factors)[4]) const {
    for (int i = 0; i < 4; ++i) factors[i] = words[i] >= threshold ? scale : 0;
  }

  // For 16 queries and 8 keys, laid out as C.
  __device__ void ByQuery(int query, int at_key, float (&factors)[4]) const {
    query += RowOfLane();
    uint32_t words[4];
    if (tokens % 4 == 0) {  // two lanes have a group: one makes that of row g, one of row g + 8
      const bool odd = Lane() % 2 == 1;
      uint32_t made[4];
      Words(first + (query + (odd ? 8 : 0)) * tokens + at_key + Lane() % 4 / 2 * 4, made);
      for (int j = 0; j < 2; ++j) {
        const uint32_t other = ShuffleXor(odd ? made[j] : made[2 + j], 1);
        words[j] = odd ? other : made[j];
        words[2 + j] = odd ? made[2 + j] : other;
      }
    } else {
      for (int i = 0; i < 4; ++i)
        words[i] = Word(first + (query + i / 2 * 8) * tokens + at_key + ColumnOfLane() + i % 2);
    }
    ToFactors(words, factors);
  }

  // For 16 keys and 8 queries, laid out as C.
  __device__ void ByKey(int at_key, int query, float (&factors)[4]) const {
    query += ColumnOfLane();
    uint32_t words[4];
    if (tokens % 4 == 0) {  // four lanes have four groups: lane i of them makes that of number i
      const int mine = Lane() / 4 % 4, from = at_key + Lane() / 16 * 4;
      Words(first + (query + mine % 2) * tokens + from + mine / 2 * 8, words);
      Transpose(words);
    } else {
      for (int i = 0; i < 4; ++i)
        words[i] = Word(first + (query + i % 2) * tokens + at_key + RowOfLane() + i / 2 * 8);
    }
    ToFactors(words, factors);
  }

  // words[i] of lane j becomes words[j] of lane i, in each set of four lanes that are 4 apart.
  static __device__ void Transpose(uint32_t (&words)[4]) {
    PP_UNROLL
    for (int bit = 1; bit <= 2; ++bit) {
      const bool upper = (Lane() / 4 & bit) != 0;
      PP_UNROLL
      for (int i = 0; i < 4; ++i) {
        if ((i & bit) != 0) continue;
        const uint32_t other = ShuffleXor(upper ? words[i] : words[i + bit], 4 * bit);
        words[i] = upper ? other : words[i];
        words[i + bit] = upper ? words[i + bit] : other;
      }
    }
  }
};

}  // namespace pp::kernels::cuda
