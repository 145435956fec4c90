// Attention of one sequence and head is the work of one thread.
//
// kQueryBlock queries are taken at a time, and their scores with all earlier keys lie in a band
// [kQueryBlock][tokens], small enough for a cache; so the softmax of a row needs no correction
// afterwards. In a band, tiles whose keys are all later than their queries are left out.
//
//            keys ->                       x  computed
//   queries  x x x x .  . .  .             .  later than the query: not computed, or zero
//      v     x x x x x  . .  .
#include "kernels/attention_layout.h"
#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "kernels/philox.h"
#include "kernels/tile.h"

namespace pp::kernels::PP_ISA {
namespace {

// Tiles are narrower than those of matmul, as 64 tokens and 64 channels are to be whole tiles.
constexpr int kVectors = 2;
constexpr int64_t kColumns = kVectors * kLanes;

struct Head {
  AttentionShape shape;
  AttentionLayout layout;
  DropoutKey dropout;
  int64_t batch, head;
  float* scratch;

  int64_t row_stride() const { return 3 * shape.heads * shape.head_dim; }
  int64_t out_stride() const { return shape.heads * shape.head_dim; }
  // Of this sequence and head, token 0, in a packed [batch, tokens, 3C]: 0 is Q, 1 is K, 2 is V.
  int64_t in_qkv(int part) const {
    return batch * shape.tokens * row_stride() + part * out_stride() + head * shape.head_dim;
  }
  int64_t in_out() const { return batch * shape.tokens * out_stride() + head * shape.head_dim; }
  int64_t in_lse() const { return (batch * shape.heads + head) * shape.tokens; }
  float scale() const { return 1 / __builtin_sqrtf(static_cast<float>(shape.head_dim)); }
};

// Queries [first, first + rows) of a head.
struct QueryBlock {
  int64_t first, rows;
};

constexpr auto kNoPrefetch = []() PP_LAMBDA {};

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// All tokens of K or V, transposed, as panels of kColumns tokens.
void CopyPanels(const Head& head, const float* in, float* panels) {
  for (int64_t t = 0; t < head.shape.tokens; t += kColumns) {
    CopyTransposedPanel<kColumns>(in + t * head.row_stride(), head.row_stride(),
                                  Least(kColumns, head.shape.tokens - t), head.shape.head_dim,
                                  panels + t * head.shape.head_dim);
  }
}

// out[row][0..width) = in[row][0..head_dim), then zeros.
void CopyRows(const Head& head, const float* in, int64_t stride, int64_t rows, float* out) {
  const int64_t n = head.shape.head_dim, width = head.layout.width;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) out[r * width + c] = in[r * stride + c];
    for (int64_t c = n; c < width; ++c) out[r * width + c] = 0;
  }
}

// band[query][key] = in[query] . (column `key` of the panels), for the keys that the last query of
// the same tile may see, and some more.
void MultiplyBand(const Head& head, const QueryBlock& block, const float* in, int64_t stride,
                  const float* panels, float* band) {
  const int64_t depth = head.shape.head_dim;
  for (int64_t key = 0; key < block.first + block.rows; key += kColumns) {
    for (int64_t i = 0; i < block.rows; i += kTileRows) {
      if (block.first + i + kTileRows <= key) continue;
      const float* a[kTileRows];
      for (int r = 0; r < kTileRows; ++r) a[r] = in + Least(i + r, block.rows - 1) * stride;
      Tile<kTileRows, kVectors> tile;
      MultiplyTile(
          tile, [&a](int r, int64_t k) PP_LAMBDA { return a[r][k]; }, panels + key * depth,
          kColumns, depth, kNoPrefetch);
      for (int r = 0; r < kTileRows; ++r) {
        float* row = band + (i + r) * head.layout.band + key;
        for (int j = 0; j < kVectors; ++j) Store(row + j * kLanes, tile.acc[r][j]);
      }
    }
  }
}

// The keys that a tile of queries reads of the band: those of its last query.
int64_t TileKeys(const QueryBlock& block, int64_t i) {
  return block.first + i / kTileRows * kTileRows + kTileRows;
}

// Makes the scores of keys later than the query -inf, so that their probability is 0.
void HideLaterKeys(const QueryBlock& block, int64_t i, float* row) {
  const int64_t end = TileKeys(block, i) + kLanes;
  for (int64_t key = block.first + i + 1; key < end; ++key) row[key] = -__builtin_inff();
}

// Factors of dropout for one query, or null.
const float* Factors(const Head& head, const DropoutMask& mask, int64_t query, int64_t keys) {
  if (!(head.dropout.p > 0)) return nullptr;
  float* factors = head.scratch + head.layout.factors;
  const int64_t row = head.head * head.shape.tokens + query;
  mask.Factors(row * head.shape.tokens, keys + kLanes, factors);
  return factors;
}

DropoutMask MaskOf(const Head& head) {
  const DropoutKey& key = head.dropout;
  return DropoutMask(key.seed, key.site, key.first_sequence + static_cast<uint32_t>(head.batch),
                     key.p);
}

struct RowStatistics {
  float lse, inverse_sum;
};

// Scores become exp(score - largest), and after that dropout.
RowStatistics Softmax(float* row, int64_t keys, float scale, const float* factors) {
  Vec most = Broadcast(-__builtin_inff()), sum = Broadcast(0);
  for (int64_t c = 0; c < keys; c += kLanes) most = Max(Load(row + c), most);
  const float largest = Largest(most) * scale;
  for (int64_t c = 0; c < keys; c += kLanes) {
    const Vec e = Exp(Load(row + c) * scale - largest);
    sum += e;
    Store(row + c, factors ? e * Load(factors + c) : e);
  }
  const float total = Sum(sum);
  return {largest + __builtin_logf(total), 1 / total};
}

// Scores become dropout(P), and the band of dP becomes dS.
void SoftmaxBackward(float* row, float* drow, int64_t keys, float scale, float lse, float dot,
                     const float* factors) {
  for (int64_t c = 0; c < keys; c += kLanes) {
    const Vec p = Exp(Load(row + c) * scale - lse);
    Vec dp = Load(drow + c), dropped = p;
    if (factors) {
      dp *= Load(factors + c);
      dropped *= Load(factors + c);
    }
    Store(row + c, dropped);
    Store(drow + c, p * (dp - dot) * scale);
  }
}

// out[query] = sum over keys of band[query][key] * rows[key], times factor[query] if there is one.
void MultiplyByRows(const Head& head, const QueryBlock& block, const float* band, const float* rows,
                    const float* factor, float* out, int64_t stride) {
  const int64_t ld = head.layout.band, width = head.layout.width, n = head.shape.head_dim;
  for (int64_t i = 0; i < block.rows; i += kTileRows) {
    const int64_t depth = Least(TileKeys(block, i), head.shape.tokens);
    for (int64_t c = 0; c < n; c += kColumns) {
      Tile<kTileRows, kVectors> tile;
      const float* a = band + i * ld;
      MultiplyTile(
          tile, [a, ld](int r, int64_t k) PP_LAMBDA { return a[r * ld + k]; }, rows + c, width,
          depth, kNoPrefetch);
      for (int r = 0; r < kTileRows && i + r < block.rows; ++r) {
        for (int j = 0; j < kVectors && c + j * kLanes < n; ++j) {
          const Vec v = factor ? tile.acc[r][j] * factor[i + r] : tile.acc[r][j];
          float* p = out + (i + r) * stride + c + j * kLanes;
          const int64_t left = n - c - j * kLanes;
          left >= kLanes ? Store(p, v) : StorePart(p, v, left);
        }
      }
    }
  }
}

// sums[key] += sum over queries of the block of band[query][key] * rows[query].
void AddTransposed(const Head& head, const QueryBlock& block, const float* band, const float* rows,
                   float* sums) {
  const int64_t ld = head.layout.band, width = head.layout.width;
  for (int64_t key = 0; key < block.first + block.rows; key += kTileRows) {
    const int64_t skip = key > block.first ? key - block.first : 0;  // earlier queries see no key
    for (int64_t c = 0; c < head.shape.head_dim; c += kColumns) {
      Tile<kTileRows, kVectors> tile;
      const float* a = band + skip * ld + key;
      MultiplyTile(
          tile, [a, ld](int r, int64_t k) PP_LAMBDA { return a[k * ld + r]; },
          rows + skip * width + c, width, block.rows - skip, kNoPrefetch);
      for (int r = 0; r < kTileRows; ++r) {
        for (int j = 0; j < kVectors; ++j) {
          float* p = sums + (key + r) * width + c + j * kLanes;
          Store(p, Load(p) + tile.acc[r][j]);
        }
      }
    }
  }
}

void Forward(const AttentionForwardArgs& args, const Head& head) {
  const AttentionLayout& layout = head.layout;
  float* k_panels = head.scratch + layout.by_token[0];
  float* v_rows = head.scratch + layout.by_token[1];
  float* band = head.scratch + layout.scores[0];
  const DropoutMask mask = MaskOf(head);
  CopyPanels(head, args.qkv + head.in_qkv(1), k_panels);
  CopyRows(head, args.qkv + head.in_qkv(2), head.row_stride(), head.shape.tokens, v_rows);
  for (int64_t first = 0; first < head.shape.tokens; first += kQueryBlock) {
    const QueryBlock block = {first, Least(kQueryBlock, head.shape.tokens - first)};
    const float* q = args.qkv + head.in_qkv(0) + first * head.row_stride();
    MultiplyBand(head, block, q, head.row_stride(), k_panels, band);
    float inverse_sum[kQueryBlock];
    for (int64_t i = 0; i < block.rows; ++i) {
      float* row = band + i * layout.band;
      HideLaterKeys(block, i, row);
      const float* factors = Factors(head, mask, first + i, TileKeys(block, i));
      const RowStatistics s = Softmax(row, TileKeys(block, i), head.scale(), factors);
      args.lse[head.in_lse() + first + i] = s.lse;
      inverse_sum[i] = s.inverse_sum;
    }
    float* out = args.out + head.in_out() + first * head.out_stride();
    MultiplyByRows(head, block, band, v_rows, inverse_sum, out, head.out_stride());
  }
}

float Dot(const float* a, const float* b, int64_t n) {
  Vec sum = Broadcast(0);
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) sum += Load(a + c) * Load(b + c);
  if (c < n) sum += LoadPart(a + c, n - c) * LoadPart(b + c, n - c);
  return Sum(sum);
}

// dP of the block is in `dband` and the scores in `band`; see SoftmaxBackward.
void BackwardRows(const AttentionBackwardArgs& args, const Head& head, const QueryBlock& block,
                  const float* dout, float* band, float* dband) {
  const DropoutMask mask = MaskOf(head);
  for (int64_t i = 0; i < block.rows; ++i) {
    const float* out = args.out + head.in_out() + (block.first + i) * head.out_stride();
    const float dot = Dot(out, dout + i * head.layout.width, head.shape.head_dim);
    float* row = band + i * head.layout.band;
    HideLaterKeys(block, i, row);
    const float* factors = Factors(head, mask, block.first + i, TileKeys(block, i));
    SoftmaxBackward(row, dband + i * head.layout.band, TileKeys(block, i), head.scale(),
                    args.lse[head.in_lse() + block.first + i], dot, factors);
  }
}

void Backward(const AttentionBackwardArgs& args, const Head& head) {
  const AttentionLayout& layout = head.layout;
  const int64_t tokens = head.shape.tokens, stride = head.row_stride(), width = layout.width;
  float* k_panels = head.scratch + layout.by_token[0];
  float* v_panels = head.scratch + layout.by_token[1];
  float* k_rows = head.scratch + layout.by_token[2];
  float* dk = head.scratch + layout.by_token[3];
  float* dv = head.scratch + layout.by_token[4];
  float* q_rows = head.scratch + layout.block[0];
  float* dout_rows = head.scratch + layout.block[1];
  float* band = head.scratch + layout.scores[0];
  float* dband = head.scratch + layout.scores[1];
  CopyPanels(head, args.qkv + head.in_qkv(1), k_panels);
  CopyPanels(head, args.qkv + head.in_qkv(2), v_panels);
  CopyRows(head, args.qkv + head.in_qkv(1), stride, tokens, k_rows);
  for (int64_t i = 0; i < layout.rows * width; ++i) dk[i] = dv[i] = 0;
  for (int64_t first = 0; first < tokens; first += kQueryBlock) {
    const QueryBlock block = {first, Least(kQueryBlock, tokens - first)};
    CopyRows(head, args.qkv + head.in_qkv(0) + first * stride, stride, block.rows, q_rows);
    CopyRows(head, args.dout + head.in_out() + first * head.out_stride(), head.out_stride(),
             block.rows, dout_rows);
    MultiplyBand(head, block, q_rows, width, k_panels, band);
    MultiplyBand(head, block, dout_rows, width, v_panels, dband);
    BackwardRows(args, head, block, dout_rows, band, dband);
    AddTransposed(head, block, band, dout_rows, dv);
    AddTransposed(head, block, dband, q_rows, dk);
    float* dq = args.dqkv + head.in_qkv(0) + first * stride;
    MultiplyByRows(head, block, dband, k_rows, nullptr, dq, stride);
  }
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = 0; c < head.shape.head_dim; ++c) {
      args.dqkv[head.in_qkv(1) + t * stride + c] = dk[t * width + c];
      args.dqkv[head.in_qkv(2) + t * stride + c] = dv[t * width + c];
    }
  }
}

template <typename Args, typename F>
void ForEachHead(const Args& args, const F& f) {
  const AttentionLayout layout = LayOutAttention(args.shape);
  ParallelFor(args.shape.batch * args.shape.heads, [&](int64_t i, int thread) {
    f(args, Head{.shape = args.shape,
                 .layout = layout,
                 .dropout = args.dropout,
                 .batch = i / args.shape.heads,
                 .head = i % args.shape.heads,
                 .scratch = static_cast<float*>(args.scratch) + thread * layout.total});
  });
}

}  // namespace

void AttentionForward(const AttentionForwardArgs& args) { ForEachHead(args, Forward); }

void AttentionBackward(const AttentionBackwardArgs& args) { ForEachHead(args, Backward); }

}  // namespace pp::kernels::PP_ISA
