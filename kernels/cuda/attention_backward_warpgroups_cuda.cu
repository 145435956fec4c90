// Attention's backward by warpgroups, three or four of them at work on a multiprocessor, or two for
// heads of 128. Bound by the products.
#include "kernels/cuda/attention_backward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

// One warpgroup, with its own rows of two matrices, and two stages of the others.
template <typename N, int kDim>
struct BackwardMemory {
  HeadTiles<N, kDim> own[2];
  struct {
    HeadTiles<N, kDim> rows[2];
    Statistics<kSide> statistics;
  } stages[2];
  int bounds[kSide];
};

template <typename N, int kTiles>
__device__ void LoadBoth(const Rows<const N>& first, const Rows<const N>& second,
                         Tile<N> (&to)[2][kTiles]) {
  LoadTiles<kGroupThreads>(first, to[0]);
  LoadTiles<kGroupThreads>(second, to[1]);
}

// The products of a's and b's rows, of two pairs of heads' tiles.
template <typename N, int kTiles>
__device__ void MultiplyBoth(const Tile<N> (&a)[2][kTiles], const Tile<N> (&b)[2][kTiles],
                             TileSums& first, TileSums& second) {
  BeginProducts();
  MultiplyHeadRows(a[0], b[0], first);
  MultiplyHeadRows(a[1], b[1], second);
  CommitProducts();
  WaitForProducts(first, second);
}

template <typename N, int kDim>
__global__ void __launch_bounds__(kGroupThreads, kDim == 64 ? 3 : 2)
    KeyGradients(AttentionBackwardArgs<N> a) {
#if PP_WARPGROUPS
  auto& memory = Shared<BackwardMemory<N, kDim>>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t kv_heads = KvHeads(a.shape), group = a.shape.heads / kv_heads;
  const int64_t batch = BlockX() / kv_heads, first_head = BlockX() % kv_heads * group;
  const int first = BlockY() * kSide;  // key; the tiles with the most queries come first
  const int own = first + Warp() * 16;
  const Head keys = HeadOf(a.shape, batch, first_head);
  LoadBoth(keys.In(a.qkv, keys.k, first), keys.In(a.qkv, keys.v, first), memory.own);
  const bool listed = a.first_keys.at != nullptr;
  const int last =
      LoadLastQueries<kGroupThreads>(a.first_keys, batch, tokens, first, memory.bounds);
  const int tiles = (last - first) / kSide + 1;
  const int rounds = static_cast<int>(group) * tiles;
  const auto load = [&](int round) {
    const Head head = LaterHead(keys, a.shape, round / tiles);
    const int query = first + round % tiles * kSide;
    auto& stage = memory.stages[round % 2];
    LoadBoth(head.In(a.qkv, head.q, query), head.Out(a.dout, query), stage.rows);
    LoadStatistics(a.lse + head.of_query + query, DotsOf(a, head) + query, tokens - query,
                   stage.statistics);
    CommitCopies();
  };
  load(0);
  const Softmax softmax(a.shape);
  const HeadDropout dropout({}, keys, batch, tokens);
  HeadSums<kDim> dk = {}, dv = {};
  PP_NO_UNROLL
  for (int round = 0; round < rounds; ++round) {
    MeetCopies();  // the previous tile has been read, too
    if (round + 1 < rounds) load(round + 1);
    const auto& stage = memory.stages[round % 2];
    float scores[1][8][4], gradients[1][8][4];
    MultiplyBoth(memory.own, stage.rows, scores[0], gradients[0]);
    const int query = first + round % tiles * kSide;
    if (listed) HideLaterQueries(memory.bounds + (own - first), query, scores);
    const auto apply = [&]<Later kLater>() {
      ApplyByKey<kLater>(softmax, dropout, own, query, stage.statistics, scores, gradients);
    };
    query == first ? apply.template operator()<Later::kSome>()
                   : apply.template operator()<Later::kNone>();
    TileFragments left, right;
    ToFragments<N>(scores[0], left);
    ToFragments<N>(gradients[0], right);
    BeginProducts(dv, dk, left, right);
    MultiplyHeadColumns(left, stage.rows[1], dv);
    MultiplyHeadColumns(right, stage.rows[0], dk);
    CommitProducts();
    WaitForProducts(dv, dk, left, right);
  }
  SyncBlock();
  const float scales[] = {softmax.scale, softmax.scale}, ones[] = {1, 1};
  StoreTiles(dk, scales, memory.own[0], keys.In(a.dqkv, keys.k, own));
  StoreTiles(dv, ones, memory.own[1], keys.In(a.dqkv, keys.v, own));
#else
  Trap();
#endif
}

template <typename N, int kDim>
__global__ void __launch_bounds__(kGroupThreads, kDim == 64 ? 4 : 2)
    QueryGradients(AttentionBackwardArgs<N> a) {
#if PP_WARPGROUPS
  auto& memory = Shared<BackwardMemory<N, kDim>>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  const int first = ((tokens - 1) / kSide - BlockY()) * kSide;  // most keys first
  const int end = first + kSide < tokens ? first + kSide : tokens;
  const int own = first + Warp() * 16;
  LoadBoth(head.In(a.qkv, head.q, first), head.Out(a.dout, first), memory.own);
  const bool listed = a.first_keys.at != nullptr;
  const int begin =
      LoadFirstKeys<kGroupThreads>(a.first_keys, batch, tokens, first, memory.bounds) / kSide *
      kSide;
  const auto load = [&](int key) {
    LoadBoth(head.In(a.qkv, head.k, key), head.In(a.qkv, head.v, key),
             memory.stages[key / kSide % 2].rows);
    CommitCopies();
  };
  load(begin);
  const Softmax softmax(a.shape);
  const HeadDropout dropout({}, head, batch, tokens);
  float lse[1][2], dots[1][2];
  for (int i = 0; i < 2; ++i) {
    const int query = own + i * 8 + RowOfLane();
    lse[0][i] = query < tokens ? a.lse[head.of_query + query] : 0;
    dots[0][i] = query < tokens ? DotsOf(a, head)[query] : 0;
  }
  HeadSums<kDim> dq = {};
  PP_NO_UNROLL
  for (int key = begin; key < end; key += kSide) {
    MeetCopies();  // the previous tile has been read, too
    if (key + kSide < end) load(key + kSide);
    const auto& stage = memory.stages[key / kSide % 2];
    float scores[1][8][4], gradients[1][8][4];
    MultiplyBoth(memory.own, stage.rows, scores[0], gradients[0]);
    if (listed) HideEarlierKeys(memory.bounds + (own - first), key, scores);
    const auto apply = [&]<Later kLater>() {
      ApplyByQuery<kLater>(softmax, dropout, own, key, lse, dots, scores, gradients);
    };
    key == first ? apply.template operator()<Later::kSome>()
                 : apply.template operator()<Later::kNone>();
    TileFragments left;
    ToFragments<N>(gradients[0], left);
    BeginProducts(dq, left);
    MultiplyHeadColumns(left, stage.rows[0], dq);
    CommitProducts();
    WaitForProducts(dq, left);
  }
  SyncBlock();
  const float scales[] = {softmax.scale, softmax.scale};
  StoreTiles(dq, scales, memory.own[0], head.In(a.dqkv, head.q, own));
#else
  Trap();
#endif
}

template <int kDim, typename N>
void Run(const AttentionBackwardArgs<N>& args, Stream stream) {
  Grid grid = {.x = args.shape.batch * KvHeads(args.shape),
               .y = CeilDiv(args.shape.tokens, kSide),
               .threads = kGroupThreads,
               .shared = sizeof(BackwardMemory<N, kDim>)};
  Launch<KeyGradients<N, kDim>>(grid, stream, args);
  grid.x = args.shape.batch * args.shape.heads;
  Launch<QueryGradients<N, kDim>>(grid, stream, args);
}

}  // namespace

template <TwoBytes N>
void GradientsByWarpgroups(const AttentionBackwardArgs<N>& args, Stream stream) {
  args.shape.head_dim == 64 ? Run<64>(args, stream) : Run<128>(args, stream);
}

#define PP_OF(N, ...) \
  template void GradientsByWarpgroups(const AttentionBackwardArgs<N>& args, Stream stream);
PP_HALVES(PP_OF)

}  // namespace pp::kernels::cuda
