// Attention's backward on a GPU, from the forward's lse: FlashAttention-2 (Dao, 2023), without the
// atomic sums that it uses by default, so that all runs have the same bits.
//
//   Dots            D_i = sum(dO*O), one value per query
//   KeyGradients    a block owns a tile of keys, goes through the queries that see them, of all
//                   heads that share them, in order, and sums dV = dropout(P)^T dO and
//                   dK = dS^T Q
//   QueryGradients  a block owns a tile of queries, goes through the keys that they see, and sums
//                   dQ = dS K
//
// Both recompute P and dS, from their own rows in shared memory and two further tiles that are
// copied there while the previous ones are used. That is 7 products of tiles where one pass would
// have 5: 7 * T^2 * head_dim FLOPs per head, fewer with a list of first keys. Bound by the
// multipliers, like the forward.
#include "kernels/cuda/attention_backward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kDotThreads = 256;

template <typename N, int kSize>
__global__ void __launch_bounds__(kDotThreads) Dots(AttentionBackwardArgs<N> a) {
  const int64_t heads = a.shape.heads, dim = a.shape.head_dim;
  const int64_t row =
      (int64_t{BlockX()} * kDotThreads + Thread()) / kDotLanes;  // batch, token, head
  const bool inside = row < a.shape.batch * a.shape.tokens * heads;
  const float dot = Dot<kSize>(a.out + row * dim, a.dout + row * dim, inside ? dim : 0);
  if (!inside || Lane() % kDotLanes != 0) return;
  const int64_t token = row / heads % a.shape.tokens, batch = row / heads / a.shape.tokens;
  static_cast<float*>(a.scratch)[(batch * heads + row % heads) * a.shape.tokens + token] = dot;
}

// Rows of two matrices in shared memory: queries and the outputs' gradients, or keys and values.
template <typename N, int kDim, int kCount>
struct Pair {
  alignas(16) N first[kCount * kRowStride<N, kDim>];
  alignas(16) N second[kCount * kRowStride<N, kDim>];
};

// A block's own rows, of keys or queries, and the tiles of the others that it goes through, two of
// them in shared memory at the same time. Registers hold kRowTiles * kDim sums and kRowTiles *
// kOthers scores and gradients of scores per thread.
template <typename N, int kDim>
struct Tiles {
  static constexpr bool kHalf = sizeof(N) == 2;
  static constexpr int kWarps = kDim > (kHalf ? 128 : 96) ? 2 : 4, kThreads = kWarps * kWarp;
  static constexpr int kRowTiles = kHalf && kDim <= 64 ? 2 : 1;
  static constexpr int kOthers =
      (kDim <= (kHalf ? 128 : 64) ? 32 : 16) / (!kHalf && kDim > 128 ? 2 : 1);
  static constexpr int kWarpRows = 16 * kRowTiles, kRows = kWarps * kWarpRows;
  static constexpr int kStride = kRowStride<N, kDim>;

  struct Stage {
    Pair<N, kDim, kOthers> rows;
    Statistics<kOthers> statistics;
  };
  struct Memory {
    Pair<N, kDim, kRows> own;
    Stage stages[2];
    int bounds[kRows];
  };
  static_assert(sizeof(Memory) <= 99 * 1024);
};

// What KeyGradients reads and writes. nvcc spills registers on sm_80 if it is given more bytes than
// these, whatever they are.
template <typename N>
struct Operands {
  AttentionShape shape;
  const N *qkv, *dout;
  const float *lse, *dots;
  N* dqkv;
  DropoutKey dropout;
  FirstKeys first_keys;
};
template <typename N>
Operands<N> OperandsOf(const AttentionBackwardArgs<N>& args) {
  return {
      args.shape, args.qkv,     args.dout,      args.lse, static_cast<const float*>(args.scratch),
      args.dqkv,  args.dropout, args.first_keys};
}

// Which of the key block's sums a thread computes: with wide heads its registers suffice for only
// one of them.
enum class Sums { kKeys, kValues, kBoth };

// kDim columns of kCount rows of a head, in two matrices.
template <int kDim, int kThreads, int kCount, typename N>
__device__ void LoadPair(const Rows<const N>& first, const Rows<const N>& second,
                         Pair<N, kDim, kCount>& to) {
  LoadRows<kDim, kCount, kThreads>(first, to.first);
  LoadRows<kDim, kCount, kThreads>(second, to.second);
}

template <typename N, int kDim, Sums kSums>
__global__ void __launch_bounds__(Tiles<N, kDim>::kThreads, 2) KeyGradients(Operands<N> a) {
  using T = Tiles<N, kDim>;
  auto& memory = Shared<typename T::Memory>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t kv_heads = KvHeads(a.shape), group = a.shape.heads / kv_heads;
  const int64_t batch = BlockX() / kv_heads, first_head = BlockX() % kv_heads * group;
  const int first = BlockY() * T::kRows;  // key; the tiles with the most queries come first
  const int row = Warp() * T::kWarpRows, own = first + row;
  const Head keys = HeadOf(a.shape, batch, first_head);
  LoadPair<kDim, T::kThreads>(keys.In(a.qkv, keys.k, first), keys.In(a.qkv, keys.v, first),
                              memory.own);
  const bool listed = a.first_keys.at != nullptr;
  const int* last_queries = memory.bounds + row;
  const int last = LoadLastQueries<T::kThreads>(a.first_keys, batch, tokens, first, memory.bounds);
  const int tiles = (last - first) / T::kOthers + 1;
  const int rounds = static_cast<int>(group) * tiles;
  const auto load = [&](int round) {
    const Head head = LaterHead(keys, a.shape, round / tiles);
    const int query = first + round % tiles * T::kOthers;
    auto& stage = memory.stages[round % 2];
    LoadPair<kDim, T::kThreads>(head.In(a.qkv, head.q, query), head.Out(a.dout, query), stage.rows);
    LoadStatistics(a.lse + head.of_query + query, a.dots + head.of_query + query, tokens - query,
                   stage.statistics);
    CommitCopies();
  };
  load(0);
  const Softmax softmax(a.shape.head_dim);
  HeadDropout dropout(a.dropout, keys, batch, tokens);
  float dk[T::kRowTiles][kDim / 8][4] = {}, dv[T::kRowTiles][kDim / 8][4] = {};
  PP_NO_UNROLL
  for (int round = 0; round < rounds; ++round) {
    WaitForCopies();
    SyncBlock();  // this tile has arrived, and the previous one has been read
    if (round + 1 < rounds) load(round + 1);
    const int query = first + round % tiles * T::kOthers;
    if (query + T::kOthers <= own) continue;
    if (listed && query > last_queries[T::kWarpRows - 1]) continue;
    const auto& stage = memory.stages[round % 2];
    const N *q = stage.rows.first, *dout = stage.rows.second;
    float scores[T::kRowTiles][T::kOthers / 8][4] = {};
    MultiplyRows<kDim>(memory.own.first + row * T::kStride, q, scores);
    if (listed) HideLaterQueries(last_queries, query, scores);
    float gradients[T::kRowTiles][T::kOthers / 8][4] = {};
    if constexpr (kSums != Sums::kValues)
      MultiplyRows<kDim>(memory.own.second + row * T::kStride, dout, gradients);
    dropout.first = LaterHead(keys, a.shape, round / tiles).dropout;
    ApplyByKey<Later::kSome>(softmax, dropout, own, query, stage.statistics, scores, gradients);
    if constexpr (kSums != Sums::kKeys) MultiplyColumns<kDim>(scores, dout, dv);
    if constexpr (kSums != Sums::kValues) MultiplyColumns<kDim>(gradients, q, dk);
  }
  if constexpr (kSums != Sums::kValues)
    StoreRows<kDim>(dk, softmax.scale, memory.own.first + row * T::kStride,
                    keys.In(a.dqkv, keys.k, own));
  if constexpr (kSums != Sums::kKeys)
    StoreRows<kDim>(dv, 1, memory.own.second + row * T::kStride, keys.In(a.dqkv, keys.v, own));
}

template <typename N, int kDim>
__global__ void __launch_bounds__(Tiles<N, kDim>::kThreads, 2)
    QueryGradients(AttentionBackwardArgs<N> a) {
  using T = Tiles<N, kDim>;
  auto& memory = Shared<typename T::Memory>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  const int first = ((tokens - 1) / T::kRows - BlockY()) * T::kRows;  // most keys first
  const int end = first + T::kRows < tokens ? first + T::kRows : tokens;
  const int row = Warp() * T::kWarpRows, own = first + row;
  LoadPair<kDim, T::kThreads>(head.In(a.qkv, head.q, first), head.Out(a.dout, first), memory.own);
  const bool listed = a.first_keys.at != nullptr;
  const int* first_keys = memory.bounds + row;
  const int begin = LoadFirstKeys<T::kThreads>(a.first_keys, batch, tokens, first, memory.bounds) /
                    T::kOthers * T::kOthers;
  const auto load = [&](int key) {
    LoadPair<kDim, T::kThreads>(head.In(a.qkv, head.k, key), head.In(a.qkv, head.v, key),
                                memory.stages[key / T::kOthers % 2].rows);
    CommitCopies();
  };
  load(begin);
  const Softmax softmax(a.shape.head_dim);
  const HeadDropout dropout(a.dropout, head, batch, tokens);
  float lse[T::kRowTiles][2], dots[T::kRowTiles][2];
  for (int i = 0; i < 2 * T::kRowTiles; ++i) {
    const int query = own + i * 8 + RowOfLane();
    lse[i / 2][i % 2] = query < tokens ? a.lse[head.of_query + query] : 0;
    dots[i / 2][i % 2] = query < tokens ? DotsOf(a, head)[query] : 0;
  }
  float dq[T::kRowTiles][kDim / 8][4] = {};
  PP_NO_UNROLL
  for (int key = begin; key < end; key += T::kOthers) {
    WaitForCopies();
    SyncBlock();  // this tile has arrived, and the previous one has been read
    if (key + T::kOthers < end) load(key + T::kOthers);
    if (key >= own + T::kWarpRows) continue;
    if (listed && key + T::kOthers <= first_keys[0]) continue;
    const auto& stage = memory.stages[key / T::kOthers % 2];
    float scores[T::kRowTiles][T::kOthers / 8][4] = {};
    float gradients[T::kRowTiles][T::kOthers / 8][4] = {};
    MultiplyRows<kDim>(memory.own.first + row * T::kStride, stage.rows.first, scores);
    MultiplyRows<kDim>(memory.own.second + row * T::kStride, stage.rows.second, gradients);
    if (listed) HideEarlierKeys(first_keys, key, scores);
    ApplyByQuery<Later::kSome>(softmax, dropout, own, key, lse, dots, scores, gradients);
    MultiplyColumns<kDim>(gradients, stage.rows.first, dq);
  }
  StoreRows<kDim>(dq, softmax.scale, memory.own.first + row * T::kStride,
                  head.In(a.dqkv, head.q, own));
}

template <int kSize, typename N>
void RunDots(const AttentionBackwardArgs<N>& args, Stream stream) {
  const int64_t rows = args.shape.batch * args.shape.tokens * args.shape.heads;
  Launch<Dots<N, kSize>>({.x = CeilDiv(rows * kDotLanes, kDotThreads), .threads = kDotThreads},
                         stream, args);
}

template <int kDim, typename N>
void Run(const AttentionBackwardArgs<N>& args, Stream stream) {
  using T = Tiles<N, kDim>;
  Grid grid = {.x = args.shape.batch * KvHeads(args.shape),
               .y = CeilDiv(args.shape.tokens, T::kRows),
               .threads = T::kThreads,
               .shared = sizeof(typename T::Memory)};
  if constexpr (kDim > 128) {
    Launch<KeyGradients<N, kDim, Sums::kKeys>>(grid, stream, OperandsOf(args));
    Launch<KeyGradients<N, kDim, Sums::kValues>>(grid, stream, OperandsOf(args));
  } else {
    Launch<KeyGradients<N, kDim, Sums::kBoth>>(grid, stream, OperandsOf(args));
  }
  grid.x = args.shape.batch * args.shape.heads;
  Launch<QueryGradients<N, kDim>>(grid, stream, args);
}

}  // namespace

template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args, Stream stream) {
  if constexpr (sizeof(N) == 2) {
    if (RunsByWarpgroups(args)) return GradientsByWarpgroups(args, stream);
  }
  const int64_t dim = args.shape.head_dim;
  constexpr int kSize = kPackSize<N>;
  dim % kSize == 0 ? RunDots<kSize>(args, stream) : RunDots<1>(args, stream);
  ForDim(dim, [&]<int kDim>() { Run<kDim>(args, stream); });
}
PP_INSTANTIATE_CUDA(AttentionBackward)

}  // namespace pp::kernels::cuda
