// Attention's backward by warpgroups: three of them at work on a multiprocessor for the gradients
// of keys and values, four for those of queries; two and three for heads of 128. Bound by the
// products. There is no kernel for the D_i: QueryGradients comes first and makes them.
#include "kernels/cuda/attention_backward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

// The warpgroups of a block, each with its own rows of two matrices, share the tiles of the others:
// kSteps of each, and the next ones. What they share is read from the L2 cache once for all of
// them. Registers hold a group's sums, of keys and values or of queries, and limit their number.
template <typename N, int kDim, int kAll, int kOnOne>
struct BackwardBlock {
  static constexpr int kGroups = kAll, kThreads = kGroups * kGroupThreads;
  static constexpr int kBlocks = kOnOne;  // on a multiprocessor
  static constexpr int kRows = kGroups * kSide, kSteps = 2;

  struct Memory {
    HeadTiles<N, kDim> own[kGroups][2];
    HeadTiles<N, kDim> stages[2][kSteps][2];
    Statistics<kSide> statistics[2][kSteps];  // of queries, if those are the others
    int bounds[kRows];
  };
  static_assert(kBlocks * (sizeof(Memory) + 1024) <= 228 * 1024);
};
template <typename N, int kDim>
using KeyBlock = BackwardBlock<N, kDim, kDim == 64 ? 3 : 2, 1>;
template <typename N, int kDim>
using QueryBlock = BackwardBlock<N, kDim, kDim == 64 ? 2 : 3, kDim == 64 ? 2 : 1>;

template <int kThreads, typename N, int kTiles>
__device__ void LoadBoth(const Rows<const N>& first, const Rows<const N>& second,
                         Tile<N> (&to)[2][kTiles]) {
  LoadTiles<kThreads>(first, to[0]);
  LoadTiles<kThreads>(second, to[1]);
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
__global__ void __launch_bounds__(KeyBlock<N, kDim>::kThreads, KeyBlock<N, kDim>::kBlocks)
    KeyGradients(AttentionBackwardArgs<N> a) {
#if PP_WARPGROUPS
  using B = KeyBlock<N, kDim>;
  constexpr int kOthers = B::kSteps * kSide;
  auto& memory = Shared<typename B::Memory>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t kv_heads = KvHeads(a.shape), sharing = a.shape.heads / kv_heads;
  const int64_t batch = BlockX() / kv_heads, first_head = BlockX() % kv_heads * sharing;
  const int first = BlockY() * B::kRows;  // key; the tiles with the most queries come first
  const int group = Warp() / 4, of_group = first + group * kSide, own = first + Warp() * 16;
  const Head keys = HeadOf(a.shape, batch, first_head);
  for (int i = 0; i < B::kGroups; ++i)
    LoadBoth<B::kThreads>(keys.In(a.qkv, keys.k, first + i * kSide),
                          keys.In(a.qkv, keys.v, first + i * kSide), memory.own[i]);
  const bool listed = a.first_keys.at != nullptr;
  const int last = LoadLastQueries<B::kThreads>(a.first_keys, batch, tokens, first, memory.bounds);
  const int stages = (last - first) / kOthers + 1;
  const int rounds = static_cast<int>(sharing) * stages;
  const auto load = [&](int round) {
    const Head head = LaterHead(keys, a.shape, round / stages);
    for (int i = 0; i < B::kSteps; ++i) {
      const int query = first + round % stages * kOthers + i * kSide;
      if (query > last) break;
      LoadBoth<B::kThreads>(head.In(a.qkv, head.q, query), head.Out(a.dout, query),
                            memory.stages[round % 2][i]);
      LoadStatistics(a.lse + head.of_query + query, DotsOf(a, head) + query, tokens - query,
                     memory.statistics[round % 2][i]);
    }
    CommitCopies();
  };
  load(0);
  const Softmax softmax(kDim);
  const HeadDropout dropout({}, keys, batch, tokens);
  HeadSums<kDim> dk = {}, dv = {};
  PP_NO_UNROLL
  for (int round = 0; round < rounds; ++round) {
    MeetCopies();  // the previous tiles have been read, too
    if (round + 1 < rounds) load(round + 1);
    PP_NO_UNROLL
    for (int i = 0; i < B::kSteps; ++i) {
      const int query = first + round % stages * kOthers + i * kSide;
      // None of these queries sees the group's keys.
      if (query < of_group || query > (listed ? memory.bounds[(group + 1) * kSide - 1] : last))
        continue;
      const auto& rows = memory.stages[round % 2][i];
      float scores[1][8][4], gradients[1][8][4];
      MultiplyBoth(memory.own[group], rows, scores[0], gradients[0]);
      if (listed) HideLaterQueries(memory.bounds + (own - first), query, scores);
      const auto apply = [&]<Later kLater>() {
        ApplyByKey<kLater>(softmax, dropout, own, query, memory.statistics[round % 2][i], scores,
                           gradients);
      };
      query == of_group ? apply.template operator()<Later::kSome>()
                        : apply.template operator()<Later::kNone>();
      TileFragments left, right;
      ToFragments<N>(scores[0], left);
      ToFragments<N>(gradients[0], right);
      BeginProducts(dv, dk, left, right);
      MultiplyHeadColumns(left, rows[1], dv);
      MultiplyHeadColumns(right, rows[0], dk);
      CommitProducts();
      WaitForProducts(dv, dk, left, right);
    }
  }
  SyncBlock();
  const float scales[] = {softmax.scale, softmax.scale}, ones[] = {1, 1};
  StoreTiles(dk, scales, memory.own[group][0], keys.In(a.dqkv, keys.k, own));
  StoreTiles(dv, ones, memory.own[group][1], keys.In(a.dqkv, keys.v, own));
#else
  Trap();
#endif
}

// D_i of a warp's queries, [query, end): for all of its lanes, and for KeyGradients.
template <int kDim, typename N>
__device__ void WriteDots(const AttentionBackwardArgs<N>& a, const Head& head, int query, int end) {
  PP_UNROLL
  for (int i = 0; i < 16; i += kWarp / kDotLanes) {
    const int mine = query + i + Lane() / kDotLanes;
    const float dot = Dot<kPackSize<N>>(head.Out(a.out, mine).at, head.Out(a.dout, mine).at,
                                        mine < end ? kDim : 0);
    if (mine < end && Lane() % kDotLanes == 0) DotsOf(a, head)[mine] = dot;
  }
  SyncWarp();
}

template <typename N, int kDim>
__global__ void __launch_bounds__(QueryBlock<N, kDim>::kThreads, QueryBlock<N, kDim>::kBlocks)
    QueryGradients(AttentionBackwardArgs<N> a) {
#if PP_WARPGROUPS
  using B = QueryBlock<N, kDim>;
  constexpr int kOthers = B::kSteps * kSide;
  auto& memory = Shared<typename B::Memory>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  const auto [first, end] = QueriesOfBlock<B::kGroups>(tokens);
  const int group = Warp() / 4, of_group = first + group * kSide, own = first + Warp() * 16;
  for (int i = 0; i < B::kGroups && first + i * kSide < end; ++i)
    LoadBoth<B::kThreads>(head.In(a.qkv, head.q, first + i * kSide),
                          head.Out(a.dout, first + i * kSide), memory.own[i]);
  const bool listed = a.first_keys.at != nullptr;
  const int begin =
      LoadFirstKeys<B::kThreads>(a.first_keys, batch, tokens, first, memory.bounds) / kSide * kSide;
  const auto load = [&](int keys) {
    for (int i = 0; i < B::kSteps; ++i) {
      const int key = keys + i * kSide;
      if (key >= end) break;
      LoadBoth<B::kThreads>(head.In(a.qkv, head.k, key), head.In(a.qkv, head.v, key),
                            memory.stages[keys / kOthers % 2][i]);
    }
    CommitCopies();
  };
  load(begin);
  WriteDots<kDim>(a, head, own, end);
  const Softmax softmax(kDim);
  const HeadDropout dropout({}, head, batch, tokens);
  float lse[1][2], dots[1][2];
  for (int i = 0; i < 2; ++i) {
    const int query = own + i * 8 + RowOfLane();
    lse[0][i] = query < end ? a.lse[head.of_query + query] : 0;
    dots[0][i] = query < end ? DotsOf(a, head)[query] : 0;
  }
  HeadSums<kDim> dq = {};
  PP_NO_UNROLL
  for (int keys = begin; keys < end; keys += kOthers) {
    MeetCopies();  // the previous tiles have been read, too
    if (keys + kOthers < end) load(keys + kOthers);
    PP_NO_UNROLL
    for (int i = 0; i < B::kSteps; ++i) {
      const int key = keys + i * kSide;
      // The group has no queries, or none that sees these keys.
      if (of_group >= end || key > of_group) break;
      if (listed && key + kSide <= memory.bounds[group * kSide]) continue;
      const auto& rows = memory.stages[keys / kOthers % 2][i];
      float scores[1][8][4], gradients[1][8][4];
      MultiplyBoth(memory.own[group], rows, scores[0], gradients[0]);
      if (listed) HideEarlierKeys(memory.bounds + (own - first), key, scores);
      const auto apply = [&]<Later kLater>() {
        ApplyByQuery<kLater>(softmax, dropout, own, key, lse, dots, scores, gradients);
      };
      key == of_group ? apply.template operator()<Later::kSome>()
                      : apply.template operator()<Later::kNone>();
      TileFragments left;
      ToFragments<N>(gradients[0], left);
      BeginProducts(dq, left);
      MultiplyHeadColumns(left, rows[0], dq);
      CommitProducts();
      WaitForProducts(dq, left);
    }
  }
  SyncBlock();
  if (of_group >= end) return;
  const float scales[] = {softmax.scale, softmax.scale};
  StoreTiles(dq, scales, memory.own[group][0], head.In(a.dqkv, head.q, own));
#else
  Trap();
#endif
}

// `heads`: of a sequence, of keys or of queries.
template <typename B>
Grid GridOf(const AttentionShape& shape, int64_t heads) {
  return {.x = shape.batch * heads,
          .y = CeilDiv(shape.tokens, B::kRows),
          .threads = B::kThreads,
          .shared = sizeof(typename B::Memory)};
}

template <int kDim, typename N>
void Run(const AttentionBackwardArgs<N>& args, Stream stream) {
  Launch<QueryGradients<N, kDim>>(GridOf<QueryBlock<N, kDim>>(args.shape, args.shape.heads), stream,
                                  args);
  Launch<KeyGradients<N, kDim>>(GridOf<KeyBlock<N, kDim>>(args.shape, KvHeads(args.shape)), stream,
                                args);
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
