// Attention's forward by warpgroups, four of them at work on a multiprocessor, or three for heads
// of 128. Bound by the exponentials for heads of 64: those of a tile take as long as its products.
#include "kernels/cuda/attention_forward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

// The warpgroups of a block share the keys and values: two times 64 of each, and the next ones.
// Registers hold a head's sums, so that fewer groups have room with wider heads.
template <typename N, int kDim>
struct ForwardBlock {
  static constexpr int kGroups = kDim == 64 ? 2 : 3, kThreads = kGroups * kGroupThreads;
  static constexpr int kBlocks = kDim == 64 ? 2 : 1;  // on a multiprocessor
  static constexpr int kQueries = kGroups * kSide, kSteps = 2;

  struct Memory {
    HeadTiles<N, kDim> queries[kGroups];
    struct {
      HeadTiles<N, kDim> keys[kSteps], values[kSteps];
    } stages[2];
    int first_keys[kQueries];
  };
};

template <typename N, int kDim>
__global__ void __launch_bounds__(ForwardBlock<N, kDim>::kThreads, ForwardBlock<N, kDim>::kBlocks)
    Forward(AttentionForwardArgs<N> a) {
#if PP_WARPGROUPS
  using B = ForwardBlock<N, kDim>;
  auto& memory = Shared<typename B::Memory>();
  constexpr int kKeys = B::kSteps * kSide;
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  const auto [first, end] = QueriesOfBlock<B::kGroups>(tokens);
  const int group = Warp() / 4, of_group = first + group * kSide;
  const int group_end = of_group < end ? of_group + kSide : 0;  // 0: it has no queries
  const int own = first + Warp() * 16;                          // this warp's first query
  const bool listed = a.first_keys.at != nullptr;
  const auto load = [&](int key) {
    auto& stage = memory.stages[key / kKeys % 2];
    for (int i = 0; i < B::kSteps && key + i * kSide < end; ++i) {
      LoadTiles<B::kThreads>(head.In(a.qkv, head.k, key + i * kSide), stage.keys[i]);
      LoadTiles<B::kThreads>(head.In(a.qkv, head.v, key + i * kSide), stage.values[i]);
    }
    CommitCopies();
  };
  for (int i = 0; i < B::kGroups && first + i * kSide < end; ++i)
    LoadTiles<B::kThreads>(head.In(a.qkv, head.q, first + i * kSide), memory.queries[i]);
  const int begin =
      LoadFirstKeys<B::kThreads>(a.first_keys, batch, tokens, first, memory.first_keys) / kSide *
      kSide;
  load(begin);

  const float scale = 1 / sqrtf(static_cast<float>(kDim)), unit = scale * kLog2E;
  HeadSums<kDim> sums = {};
  auto& rows = reinterpret_cast<float(&)[1][kDim / 8][4]>(sums);
  TileFragments weights = {};
  Normalizers<1> normalizers;
  PP_NO_UNROLL
  for (int keys = begin; keys < end; keys += kKeys) {
    MeetCopies();  // the previous keys and values have been read, too
    if (keys + kKeys < end) load(keys + kKeys);
    const auto& stage = memory.stages[keys / kKeys % 2];
    // A step is skipped if the group sees none of its keys.
    const int before = listed ? memory.first_keys[group * kSide] - keys : 0;
    PP_NO_UNROLL
    for (int i = before > 0 ? before / kSide : 0; i < B::kSteps; ++i) {
      const int key = keys + i * kSide;
      if (key >= group_end) break;
      float scores[1][8][4];
      BeginProducts();
      MultiplyHeadRows(memory.queries[group], stage.keys[i], scores[0]);
      CommitProducts();
      WaitForProducts(scores[0], sums, weights);
      if (key + kSide > own) HideLaterKeys(own, key, scores);
      if (listed) HideEarlierKeys(memory.first_keys + (own - first), key, scores);
      OnlineSoftmax(unit, scores, normalizers, rows);
      ToFragments<N>(scores[0], weights);
      BeginProducts(sums, weights);
      MultiplyHeadColumns(weights, stage.values[i], sums);
      CommitProducts();  // and the next scores follow at once
    }
    WaitForProducts(sums, weights);
  }
  SyncBlock();
  if (group_end == 0) return;
  float factors[1][2];
  Finish(scale, normalizers, tokens - own, a.lse + head.of_query + own, factors);
  StoreTiles(sums, factors[0], memory.queries[group], head.Out(a.out, own));
#else
  Trap();
#endif
}

template <int kDim, typename N>
void Run(const AttentionForwardArgs<N>& args, Stream stream) {
  using B = ForwardBlock<N, kDim>;
  Launch<Forward<N, kDim>>({.x = args.shape.batch * args.shape.heads,
                            .y = CeilDiv(args.shape.tokens, B::kQueries),
                            .threads = B::kThreads,
                            .shared = sizeof(typename B::Memory)},
                           stream, args);
}

}  // namespace

template <TwoBytes N>
void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream) {
  args.shape.head_dim == 64 ? Run<64>(args, stream) : Run<128>(args, stream);
}

#define PP_OF(N, ...) \
  template void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream);
PP_HALVES(PP_OF)

}  // namespace pp::kernels::cuda
