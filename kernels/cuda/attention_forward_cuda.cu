// Attention's forward on a GPU: FlashAttention-2 (Dao, 2023).
//
// A block owns a tile of queries of one head, each of its warps 16 or 32 of them, and goes through
// the tiles of keys from the first one that they see up to its last query. A row's scores never
// leave its four lanes; their sums are corrected when a later tile has a larger score. While the
// scores of a tile are computed, its values are copied to shared memory, and while these are
// summed, the next keys.
//
// 2 * T^2 * head_dim FLOPs per head, as half of the scores are needed; fewer with a list of first
// keys. Bound by the multipliers: what a block reads of K and V serves 32 to 128 queries, that is
// 16 (float, widest heads) to 128 (BFloat16) FLOPs per byte, most of them from the second-level
// cache.
#include "kernels/cuda/attention_forward_cuda.h"
#include "kernels/cuda/attention_warpgroups_cuda.h"

namespace pp::kernels::cuda {
namespace {

// Registers hold the outputs and scores, kRowTiles * (kDim + kKeys) / 2 of 255 per thread; shared
// memory holds all queries, and keys and values of a tile.
template <typename N, int kDim>
struct Tiles {
  static constexpr bool kHalf = sizeof(N) == 2;
  static constexpr int kWarps = !kHalf && kDim > 128 ? 2 : 4, kThreads = kWarps * kWarp;
  static constexpr int kRowTiles = kDim <= (kHalf ? 128 : 64) ? 2 : 1;
  static constexpr int kKeys = kHalf ? (kDim > 80   ? 32
                                        : kDim > 64 ? 48
                                                    : 64)
                                     : (kDim > 128 ? 16 : 32);
  static constexpr int kWarpQueries = 16 * kRowTiles, kQueries = kWarps * kWarpQueries;
  static constexpr int kStride = kRowStride<N, kDim>;

  struct Memory {
    alignas(16) N queries[kQueries * kStride];
    alignas(16) N keys[kKeys * kStride];
    alignas(16) N values[kKeys * kStride];
    int first_keys[kQueries];
  };
  static_assert(sizeof(Memory) <= 99 * 1024);
};

template <typename N, int kDim>
__global__ void __launch_bounds__(Tiles<N, kDim>::kThreads, 2) Forward(AttentionForwardArgs<N> a) {
  using T = Tiles<N, kDim>;
  auto& memory = Shared<typename T::Memory>();
  const int tokens = static_cast<int>(a.shape.tokens);
  const int64_t batch = BlockX() / a.shape.heads;
  const Head head = HeadOf(a.shape, batch, BlockX() % a.shape.heads);
  // Tiles with the most keys start first.
  const int first = ((tokens - 1) / T::kQueries - BlockY()) * T::kQueries;
  const int end = first + T::kQueries < tokens ? first + T::kQueries : tokens;
  const int own = first + Warp() * T::kWarpQueries;  // this warp's first query
  N* own_queries = memory.queries + (own - first) * T::kStride;
  const bool listed = a.first_keys.at != nullptr;
  const int* first_keys = memory.first_keys + (own - first);
  const auto load = [&](int64_t from, int key, N* to) {
    LoadRows<kDim, T::kKeys, T::kThreads>(head.In(a.qkv, from, key), to);
    CommitCopies();
  };
  LoadRows<kDim, T::kQueries, T::kThreads>(head.In(a.qkv, head.q, first), memory.queries);
  const int begin =
      LoadFirstKeys<T::kThreads>(a.first_keys, batch, tokens, first, memory.first_keys) / T::kKeys *
      T::kKeys;
  load(head.k, begin, memory.keys);

  const float scale = 1 / sqrtf(static_cast<float>(head.dim)), unit = scale * kLog2E;
  const HeadDropout dropout(a.dropout, head, batch, tokens);
  float sums[T::kRowTiles][kDim / 8][4] = {};
  Normalizers<T::kRowTiles> normalizers;
  PP_NO_UNROLL
  for (int key = begin; key < end; key += T::kKeys) {
    WaitForCopies();
    SyncBlock();  // the keys have arrived, and the previous values have been read
    load(head.v, key, memory.values);
    const bool visible =
        key < own + T::kWarpQueries && !(listed && key + T::kKeys <= first_keys[0]);
    float scores[T::kRowTiles][T::kKeys / 8][4] = {};
    if (visible) MultiplyRows<kDim>(own_queries, memory.keys, scores);
    WaitForCopies();
    SyncBlock();  // the values have arrived, and the keys have been read
    if (key + T::kKeys < end) load(head.k, key + T::kKeys, memory.keys);
    if (!visible) continue;
    if (key + T::kKeys > own) HideLaterKeys(own, key, scores);
    if (listed) HideEarlierKeys(first_keys, key, scores);
    OnlineSoftmax(unit, scores, normalizers, sums);
    if (a.dropout.p > 0) Drop(dropout, own, key, scores);
    MultiplyColumns<kDim>(scores, memory.values, sums);
  }
  float factors[T::kRowTiles][2];
  Finish(scale, normalizers, tokens - own, a.lse + head.of_query + own, factors);
  StoreRows<kDim>(sums, factors, own_queries, head.Out(a.out, own));
}

template <int kDim, typename N>
void Run(const AttentionForwardArgs<N>& args, Stream stream) {
  using T = Tiles<N, kDim>;
  Launch<Forward<N, kDim>>({.x = args.shape.batch * args.shape.heads,
                            .y = CeilDiv(args.shape.tokens, T::kQueries),
                            .threads = T::kThreads,
                            .shared = sizeof(typename T::Memory)},
                           stream, args);
}

}  // namespace

template <typename N>
void AttentionForward(const AttentionForwardArgs<N>& args, Stream stream) {
  if constexpr (sizeof(N) == 2) {
    if (RunsByWarpgroups(args)) return ForwardByWarpgroups(args, stream);
  }
  ForDim(args.shape.head_dim, [&]<int kDim>() { Run<kDim>(args, stream); });
}
PP_INSTANTIATE_CUDA(AttentionForward)

}  // namespace pp::kernels::cuda
