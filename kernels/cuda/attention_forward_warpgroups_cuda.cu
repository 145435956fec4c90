// Attention's forward by warpgroups, four of them at work on a multiprocessor. Bound by the
// exponentials: those of a tile take as long as its products.
#include "kernels/cuda/attention_forward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

// Two warpgroups, which share the keys and values: two tiles of each, and the next two.
constexpr int kForwardGroups = 2, kForwardThreads = kForwardGroups * kGroupThreads;
constexpr int kForwardTiles = 2;

template <typename N>
struct ForwardMemory {
  Tile<N> queries[kForwardGroups];
  struct {
    Tile<N> keys[kForwardTiles], values[kForwardTiles];
  } stages[2];
};

template <typename N>
__global__ void __launch_bounds__(kForwardThreads, 2) Forward(AttentionForwardArgs<N> a) {
#if PP_WARPGROUPS
  auto& memory = Shared<ForwardMemory<N>>();
  constexpr int kQueries = kForwardGroups * kSide, kKeys = kForwardTiles * kSide;
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  // Tiles with the most keys start first.
  const int first = ((tokens - 1) / kQueries - BlockY()) * kQueries;
  const int end = first + kQueries < tokens ? first + kQueries : tokens;
  const int group = Warp() / 4, group_end = first + (group + 1) * kSide;
  const int own = first + Warp() * 16;  // this warp's first query
  N* own_queries = memory.queries[group].at + Warp() % 4 * 16 * kSide;
  const auto load = [&](int key) {
    auto& stage = memory.stages[key / kKeys % 2];
    for (int i = 0; i < kForwardTiles; ++i) {
      LoadTile<kForwardThreads>(head.In(a.qkv, head.k, key + i * kSide), stage.keys[i]);
      LoadTile<kForwardThreads>(head.In(a.qkv, head.v, key + i * kSide), stage.values[i]);
    }
    CommitCopies();
  };
  for (int i = 0; i < kForwardGroups; ++i)
    LoadTile<kForwardThreads>(head.In(a.qkv, head.q, first + i * kSide), memory.queries[i]);
  load(0);

  const float scale = 1 / sqrtf(static_cast<float>(kSide)), unit = scale * kLog2E;
  float sums[1][8][4] = {};
  TileFragments weights = {};
  Normalizers<1> normalizers = {{{-INFINITY, -INFINITY}}, {{0, 0}}};
  PP_NO_UNROLL
  for (int keys = 0; keys < end; keys += kKeys) {
    MeetCopies();  // the previous keys and values have been read, too
    if (keys + kKeys < end) load(keys + kKeys);
    const auto& stage = memory.stages[keys / kKeys % 2];
    PP_NO_UNROLL
    for (int i = 0; i < kForwardTiles; ++i) {
      const int key = keys + i * kSide;
      if (key >= group_end) break;
      float scores[1][8][4];
      BeginProducts();
      MultiplyTileRows(memory.queries[group].at, stage.keys[i].at, scores[0]);
      CommitProducts();
      WaitForProducts(scores[0], sums[0], weights);
      if (key + kSide > own) HideLaterKeys(own, key, scores);
      OnlineSoftmax(unit, scores, normalizers, sums);
      ToFragments<N>(scores[0], weights);
      BeginProducts(sums[0], weights);
      MultiplyTileColumns(weights, stage.values[i].at, sums[0]);
      CommitProducts();  // and the next scores follow at once
    }
    WaitForProducts(sums[0], weights);
  }
  float factors[1][2];
  Finish(scale, normalizers, tokens - own, a.lse + head.of_query + own, factors);
  SyncBlock();
  StoreTile(sums[0], factors[0], own_queries, head.Out(a.out, own));
#else
  Trap();
#endif
}

}  // namespace

template <TwoBytes N>
void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream) {
  Launch<Forward<N>>({.x = args.shape.batch * args.shape.heads,
                      .y = CeilDiv(args.shape.tokens, kForwardGroups * kSide),
                      .threads = kForwardThreads,
                      .shared = sizeof(ForwardMemory<N>)},
                     stream, args);
}

#define PP_OF(N, ...) \
  template void ForwardByWarpgroups(const AttentionForwardArgs<N>& args, Stream stream);
PP_HALVES(PP_OF)

}  // namespace pp::kernels::cuda
