// Attention of one sequence and one head of keys and values, with all queries that share it, is the
// work of one thread.
//
// The scores of kQueryBlock queries with kKeyBlock keys are in a band [kQueryBlock][kKeyBlock],
// small enough for a cache. Blocks whose queries see none of their keys are skipped, and so are
// tiles of a band.
//
//            keys ->                       x  computed
//   queries  . x x x .  . .  .             .  earlier than the query's first key, or later than the
//      v     . . x x x  . .  .                query: not computed, or zero
//
// The forward goes through the blocks of keys for each block of queries, and corrects its results
// when a later block has a larger score (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018). The backward goes through the blocks of queries for each block of keys, so that
// all data of those keys stays in the cache; it adds to the queries' gradients.
#include "kernels/attention_layout.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/philox.h"
#include "kernels/cpu/tile.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

// Tiles are narrower than those of matmul, as 64 tokens and 64 channels must be whole tiles.
constexpr int kVectors = 2;
constexpr int64_t kColumns = kVectors * kLanes;
static_assert(kColumns % kTileRows == 0);

struct Head {
  AttentionShape shape;
  AttentionLayout layout;
  DropoutKey dropout;
  const int32_t* first_keys;  // of the sequence, or null
  int64_t batch, head;        // of the queries
  float* scratch;

  int64_t group() const { return QueriesOfKey(shape); }
  int64_t row_stride() const { return (shape.heads + 2 * shape.heads / group()) * shape.head_dim; }
  int64_t out_stride() const { return shape.heads * shape.head_dim; }
  // Of this sequence and head, token 0, in a packed row: of its queries, its keys and its values.
  int64_t in_row(int64_t head_of_row) const {
    return batch * shape.tokens * row_stride() + head_of_row * shape.head_dim;
  }
  int64_t in_q() const { return in_row(head); }
  int64_t in_k() const { return in_row(shape.heads + head / group()); }
  int64_t in_v() const { return in_k() + shape.heads / group() * shape.head_dim; }
  int64_t in_out() const { return batch * shape.tokens * out_stride() + head * shape.head_dim; }
  int64_t in_lse() const { return (batch * shape.heads + head) * shape.tokens; }
  // D_i of the head's queries.
  float* dots() const { return scratch + layout.dots + head % group() * shape.tokens; }
  // Their sums, if they are kept.
  float* queries() const {
    return scratch + layout.queries + head % group() * shape.tokens * layout.width;
  }
  int64_t FirstKey(int64_t query) const { return first_keys == nullptr ? 0 : first_keys[query]; }
  float scale() const { return 1 / __builtin_sqrtf(static_cast<float>(shape.head_dim)); }

  // The next head of queries with the same keys and values.
  bool Next() { return ++head % group() != 0; }
};

// Queries [first, first + rows) of a head.
struct QueryBlock {
  int64_t first, rows;
};

// Keys [first, first + keys) of a head; first is a multiple of kKeyBlock. In a band, and in what is
// kept of a block of keys, keys count from the block's first one.
struct KeyBlock {
  int64_t first, keys;
};

constexpr auto kNoPrefetch = []() PP_LAMBDA {};

int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

// The keys [begin, end) of a band that a tile of queries reads: from the panel with the first key
// of its first query to its last query. There are none if end <= begin.
struct TileKeys {
  int64_t begin, end;
};
TileKeys KeysOfTile(const Head& head, const QueryBlock& block, const KeyBlock& keys, int64_t i) {
  const int64_t query = block.first + i / kTileRows * kTileRows;
  const int64_t first = Most(head.FirstKey(query) - keys.first, 0);
  return {Least(first, kKeyBlock) / kColumns * kColumns,
          Least(query - keys.first + kTileRows, kKeyBlock)};
}

// `tokens` tokens of K or V, transposed, as panels of kColumns tokens.
template <typename N>
void CopyPanels(const Head& head, const N* in, int64_t tokens, float* panels) {
  for (int64_t t = 0; t < tokens; t += kColumns) {
    CopyTransposedPanel<kColumns>(in + t * head.row_stride(), head.row_stride(),
                                  Least(kColumns, tokens - t), head.shape.head_dim,
                                  panels + t * head.shape.head_dim);
  }
}

// out[row][0..width) = in[row][0..head_dim), then zeros.
template <typename N>
void CopyRows(const Head& head, const N* in, int64_t stride, int64_t rows, float* out) {
  const int64_t n = head.shape.head_dim, width = head.layout.width;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < width; c += kLanes)
      Store(out + r * width + c, c < n ? LoadUpTo(in + r * stride + c, n - c) : Broadcast(0));
  }
}

// band[query][key] = in[query] . (column `key` of the panels), for the keys that the query's tile
// reads, and some more.
void MultiplyBand(const Head& head, const QueryBlock& block, const KeyBlock& keys, const float* in,
                  int64_t stride, const float* panels, float* band) {
  const int64_t depth = head.shape.head_dim, first = block.first - keys.first;
  for (int64_t key = KeysOfTile(head, block, keys, 0).begin;
       key < Least(keys.keys, first + block.rows); key += kColumns) {
    for (int64_t i = 0; i < block.rows; i += kTileRows) {
      if (first + i + kTileRows <= key) continue;
      if (KeysOfTile(head, block, keys, i).begin > key) break;
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

// Sets the scores of keys that the query does not see to -inf, so that their probability is 0.
void HideKeys(const Head& head, int64_t query, const KeyBlock& keys, const TileKeys& read,
              float* row) {
  const int64_t first = Least(head.FirstKey(query) - keys.first, read.end);
  for (int64_t key = read.begin; key < first; ++key) row[key] = -__builtin_inff();
  for (int64_t key = query - keys.first + 1; key < read.end + kLanes; ++key)
    row[key] = -__builtin_inff();
}

// Dropout factors for one query and `keys` keys, or null.
const float* Factors(const Head& head, const DropoutMask& mask, int64_t query, int64_t first,
                     int64_t keys) {
  if (!(head.dropout.p > 0)) return nullptr;
  float* factors = head.scratch + head.layout.factors;
  const int64_t row = (head.shape.first_head + head.head) * head.shape.tokens + query;
  mask.Factors(row * head.shape.tokens + first, keys + kLanes, factors);
  return factors;
}

DropoutMask MaskOf(const Head& head) {
  const DropoutKey& key = head.dropout;
  return DropoutMask(key.seed, key.site, key.first_sequence + static_cast<uint32_t>(head.batch),
                     key.p);
}

// The state of a query's softmax over the keys so far. `largest` is finite before there is one, so
// that exp(-inf - largest) is 0.
struct Normalizer {
  float largest = -__FLT_MAX__, sum = 0;
};

// Turns scores into exp(score - largest), and then applies dropout. Returns the factor for the sums
// over earlier keys, as `largest` has grown.
float Softmax(float* row, int64_t keys, float scale, const float* factors, Normalizer& normalizer) {
  Vec most = Broadcast(-__builtin_inff()), sum = Broadcast(0);
  for (int64_t c = 0; c < keys; c += kLanes) most = Max(Load(row + c), most);
  const float before = normalizer.largest, here = Largest(most) * scale;
  const float largest = here > before ? here : before;
  for (int64_t c = 0; c < keys; c += kLanes) {
    const Vec e = Exp(Load(row + c) * scale - largest);
    sum += e;
    Store(row + c, factors ? e * Load(factors + c) : e);
  }
  const float correction = largest > before ? Exp(Broadcast(before - largest))[0] : 1;
  normalizer = {largest, normalizer.sum * correction + Sum(sum)};
  return correction;
}

// Turns scores into dropout(P), and the band of dP into dS.
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

// put(query, column, sum over keys of band[query][key] * rows[key][column...]), kLanes columns at a
// time.
template <typename Put>
PP_INLINE void MultiplyByRows(const Head& head, const QueryBlock& block, const KeyBlock& keys,
                              const float* band, const float* rows, const Put& put) {
  const int64_t ld = head.layout.band, width = head.layout.width, n = head.shape.head_dim;
  for (int64_t i = 0; i < block.rows; i += kTileRows) {
    const TileKeys read = KeysOfTile(head, block, keys, i);
    const int64_t depth = Least(read.end, keys.keys) - read.begin;
    for (int64_t c = 0; c < n; c += kColumns) {
      Tile<kTileRows, kVectors> tile;
      const float* a = band + i * ld + read.begin;
      MultiplyTile(
          tile, [a, ld](int r, int64_t k) PP_LAMBDA { return a[r * ld + k]; },
          rows + read.begin * width + c, width, depth, kNoPrefetch);
      for (int r = 0; r < kTileRows && i + r < block.rows; ++r) {
        for (int j = 0; j < kVectors && c + j * kLanes < n; ++j) {
          put(i + r, c + j * kLanes, tile.acc[r][j]);
        }
      }
    }
  }
}

// sums[key] += sum over the block's queries of band[query][key] * rows[query].
void AddTransposed(const Head& head, const QueryBlock& block, const KeyBlock& keys,
                   const float* band, const float* rows, float* sums) {
  const int64_t ld = head.layout.band, width = head.layout.width;
  const int64_t first = block.first - keys.first;
  int64_t end = 0;  // of the tiles of queries that read the key
  for (int64_t key = KeysOfTile(head, block, keys, 0).begin;
       key < Least(keys.keys, first + block.rows); key += kTileRows) {
    while (end < block.rows && KeysOfTile(head, block, keys, end).begin <= key) end += kTileRows;
    const int64_t skip = key > first ? key - first : 0;  // earlier queries see no key
    const int64_t depth = Least(end, block.rows) - skip;
    for (int64_t c = 0; c < head.shape.head_dim; c += kColumns) {
      Tile<kTileRows, kVectors> tile;
      const float* a = band + skip * ld + key;
      MultiplyTile(
          tile, [a, ld](int r, int64_t k) PP_LAMBDA { return a[k * ld + r]; },
          rows + skip * width + c, width, depth, kNoPrefetch);
      for (int r = 0; r < kTileRows; ++r) {
        for (int j = 0; j < kVectors; ++j) {
          float* p = sums + (key + r) * width + c + j * kLanes;
          Store(p, Load(p) + tile.acc[r][j]);
        }
      }
    }
  }
}

KeyBlock KeysFrom(const Head& head, int64_t first) {
  return {first, Least(kKeyBlock, head.shape.tokens - first)};
}

QueryBlock QueriesFrom(const Head& head, int64_t first) {
  return {first, Least(kQueryBlock, head.shape.tokens - first)};
}

// Where the first block of keys begins that a block of queries sees.
int64_t FirstKeyBlock(const Head& head, int64_t first_query) {
  return head.FirstKey(first_query) / kKeyBlock * kKeyBlock;
}

template <typename N>
void ForwardQueries(const AttentionForwardArgs<N>& args, const Head& head) {
  const AttentionLayout& layout = head.layout;
  const int64_t tokens = head.shape.tokens, n = head.shape.head_dim;
  const float* k_panels = head.scratch + layout.forward[0];
  const float* v_rows = head.scratch + layout.forward[1];
  float* band = head.scratch + layout.scores[0];
  float* sums = head.scratch + layout.block[0];
  float* q_rows = head.scratch + layout.block[1];
  const DropoutMask mask = MaskOf(head);
  for (int64_t first = 0; first < tokens; first += kQueryBlock) {
    const QueryBlock block = QueriesFrom(head, first);
    CopyRows(head, args.qkv + head.in_q() + first * head.row_stride(), head.row_stride(),
             block.rows, q_rows);
    N* out = args.out + head.in_out() + first * head.out_stride();
    Normalizer normalizers[kQueryBlock];
    const int64_t begin = FirstKeyBlock(head, first);
    for (int64_t key = begin; key <= first; key += kKeyBlock) {
      const KeyBlock keys = KeysFrom(head, key);
      MultiplyBand(head, block, keys, q_rows, layout.width, k_panels + key * n, band);
      float corrections[kQueryBlock];
      for (int64_t i = 0; i < block.rows; ++i) {
        float* row = band + i * layout.band;
        const TileKeys read = KeysOfTile(head, block, keys, i);
        const int64_t count = read.end - read.begin;
        HideKeys(head, first + i, keys, read, row);
        const float* factors = Factors(head, mask, first + i, key + read.begin, count);
        corrections[i] = Softmax(row + read.begin, count, head.scale(), factors, normalizers[i]);
      }
      const bool last = key + kKeyBlock > first;
      MultiplyByRows(head, block, keys, band, v_rows + key * layout.width,
                     [&](int64_t i, int64_t c, Vec sum) PP_LAMBDA {
                       float* before = sums + i * layout.width + c;
                       if (key > begin) sum += Load(before) * corrections[i];
                       if (!last) return Store(before, sum);
                       const float factor = 1 / normalizers[i].sum;
                       StoreUpTo(out + i * head.out_stride() + c, sum * factor, n - c);
                     });
    }
    for (int64_t i = 0; i < block.rows; ++i) {
      const Normalizer& of = normalizers[i];
      args.lse[head.in_lse() + first + i] = of.largest + __builtin_logf(of.sum);
    }
  }
}

template <typename N>
void Forward(const AttentionForwardArgs<N>& args, Head head) {
  const int64_t tokens = head.shape.tokens;
  CopyPanels(head, args.qkv + head.in_k(), tokens, head.scratch + head.layout.forward[0]);
  CopyRows(head, args.qkv + head.in_v(), head.row_stride(), tokens,
           head.scratch + head.layout.forward[1]);
  do {
    ForwardQueries(args, head);
  } while (head.Next());
}

template <typename N>
float Dot(const N* a, const N* b, int64_t n) {
  Vec sum = Broadcast(0);
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) sum += Load(a + c) * Load(b + c);
  if (c < n) sum += LoadPart(a + c, n - c) * LoadPart(b + c, n - c);
  return Sum(sum);
}

// The block's dP is in `dband` and the scores in `band`; see SoftmaxBackward.
template <typename N>
void BackwardRows(const AttentionBackwardArgs<N>& args, const Head& head, const QueryBlock& block,
                  const KeyBlock& keys, float* band, float* dband) {
  const DropoutMask mask = MaskOf(head);
  const float* dots = head.dots();
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t query = block.first + i, at = i * head.layout.band;
    const TileKeys read = KeysOfTile(head, block, keys, i);
    const int64_t count = read.end - read.begin;
    HideKeys(head, query, keys, read, band + at);
    const float* factors = Factors(head, mask, query, keys.first + read.begin, count);
    SoftmaxBackward(band + at + read.begin, dband + at + read.begin, count, head.scale(),
                    args.lse[head.in_lse() + query], dots[query], factors);
  }
}

// All queries of a head with a block of keys: adds to dk and dv.
template <typename N>
void BackwardQueries(const AttentionBackwardArgs<N>& args, const Head& head, const KeyBlock& keys) {
  const AttentionLayout& layout = head.layout;
  const int64_t n = head.shape.head_dim, stride = head.row_stride(), width = layout.width;
  const float* k_panels = head.scratch + layout.backward[0];
  const float* v_panels = head.scratch + layout.backward[1];
  const float* k_rows = head.scratch + layout.backward[2];
  float* dk = head.scratch + layout.backward[3];
  float* dv = head.scratch + layout.backward[4];
  float* q_rows = head.scratch + layout.block[0];
  float* dout_rows = head.scratch + layout.block[1];
  float* band = head.scratch + layout.scores[0];
  float* dband = head.scratch + layout.scores[1];
  for (int64_t first = keys.first; first < head.shape.tokens; first += kQueryBlock) {
    if (head.FirstKey(first) >= keys.first + keys.keys) break;  // and so it is for later ones
    const QueryBlock block = QueriesFrom(head, first);
    CopyRows(head, args.qkv + head.in_q() + first * stride, stride, block.rows, q_rows);
    CopyRows(head, args.dout + head.in_out() + first * head.out_stride(), head.out_stride(),
             block.rows, dout_rows);
    MultiplyBand(head, block, keys, q_rows, width, k_panels, band);
    MultiplyBand(head, block, keys, dout_rows, width, v_panels, dband);
    BackwardRows(args, head, block, keys, band, dband);
    AddTransposed(head, block, keys, band, dout_rows, dv);
    AddTransposed(head, block, keys, dband, q_rows, dk);
    N* dq = args.dqkv + head.in_q() + first * stride;
    const bool adds = keys.first > FirstKeyBlock(head, first);
    const bool last = keys.first + kKeyBlock > first;
    MultiplyByRows(head, block, keys, dband, k_rows, [&](int64_t i, int64_t c, Vec sum) PP_LAMBDA {
      N* p = dq + i * stride + c;
      if constexpr (sizeof(N) == sizeof(float)) {
        if (adds) sum += LoadUpTo(p, n - c);
      } else {
        float* before = head.queries() + (first + i) * width + c;
        if (adds) sum += Load(before);
        if (!last) return Store(before, sum);
      }
      StoreUpTo(p, sum, n - c);
    });
  }
}

template <typename N>
void BackwardKeys(const AttentionBackwardArgs<N>& args, Head head, const KeyBlock& keys) {
  const AttentionLayout& layout = head.layout;
  const int64_t stride = head.row_stride(), width = layout.width;
  float* dk = head.scratch + layout.backward[3];
  float* dv = head.scratch + layout.backward[4];
  const N* k = args.qkv + head.in_k() + keys.first * stride;
  const N* v = args.qkv + head.in_v() + keys.first * stride;
  CopyPanels(head, k, keys.keys, head.scratch + layout.backward[0]);
  CopyPanels(head, v, keys.keys, head.scratch + layout.backward[1]);
  CopyRows(head, k, stride, keys.keys, head.scratch + layout.backward[2]);
  for (int64_t i = 0; i < layout.keys * width; ++i) dk[i] = dv[i] = 0;
  N* to_k = args.dqkv + head.in_k() + keys.first * stride;
  N* to_v = args.dqkv + head.in_v() + keys.first * stride;
  do {
    BackwardQueries(args, head, keys);
  } while (head.Next());
  for (int64_t t = 0; t < keys.keys; ++t) {
    for (int64_t c = 0; c < head.shape.head_dim; c += kLanes) {
      StoreUpTo(to_k + t * stride + c, Load(dk + t * width + c), head.shape.head_dim - c);
      StoreUpTo(to_v + t * stride + c, Load(dv + t * width + c), head.shape.head_dim - c);
    }
  }
}

template <typename N>
void Backward(const AttentionBackwardArgs<N>& args, Head head) {
  const int64_t tokens = head.shape.tokens, stride = head.out_stride();
  Head each = head;
  do {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t at = each.in_out() + t * stride;
      each.dots()[t] = Dot(args.out + at, args.dout + at, each.shape.head_dim);
    }
  } while (each.Next());
  for (int64_t key = 0; key < tokens; key += kKeyBlock) {
    BackwardKeys(args, head, KeysFrom(head, key));
  }
}

// f(args, head) for the first head of queries of each head of keys and values.
template <typename N, typename Args, typename F>
void ForEachHead(const Args& args, const F& f) {
  const AttentionLayout layout = LayOutAttention<N>(args.shape);
  const int64_t group = QueriesOfKey(args.shape), kv_heads = args.shape.heads / group;
  ParallelFor(args.shape.batch * kv_heads, [&](int64_t i, int thread) {
    f(args, Head{.shape = args.shape,
                 .layout = layout,
                 .dropout = args.dropout,
                 .first_keys = args.first_keys.at == nullptr
                                   ? nullptr
                                   : args.first_keys.at + i / kv_heads * args.first_keys.stride,
                 .batch = i / kv_heads,
                 .head = i % kv_heads * group,
                 .scratch = ScratchOf(thread, layout.total, args.scratch, args.helpers)});
  });
}

}  // namespace

template <typename N>
void AttentionForward(const AttentionForwardArgs<N>& args) {
  ForEachHead<N>(args, Forward<N>);
}

template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args) {
  ForEachHead<N>(args, Backward<N>);
}

PP_INSTANTIATE(AttentionForward)
PP_INSTANTIATE(AttentionBackward)

}  // namespace pp::kernels::PP_ISA
