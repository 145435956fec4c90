// The embedding on a GPU. Memory-bound: the forward reads a row of the table (and of the positions)
// and writes a row of activations; the backward reads a row of activations twice, and reads and
// writes rows of gradients. In addition, the backward goes over all tokens once per row, from the
// second-level cache.
//
// dtable without atomics: the block of a row exits immediately if an earlier row has its token.
// Otherwise it lists all later rows that have it, 1024 tokens at a time, and adds them in order.
// Given places are added in the same way, as tokens of the table of positions.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/mask_cuda.h"
#include "kernels/embedding.h"

namespace pp::kernels::cuda {
namespace {

template <typename N>
struct LookUpEach {
  EmbeddingForwardArgs<N> a;
  Mask mask;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const int64_t row = i / a.channels, c = i - row * a.channels;
    const int64_t b = row / a.tokens, t = row - b * a.tokens;
    const int64_t token = a.token[row] - a.first;
    Pack<float, kSize> sum = {};
    if (0 <= token && token < a.vocabulary) sum = LoadPack<kSize>(a.table + token * a.channels + c);
    if (a.position != nullptr) {
      const int64_t place = a.place != nullptr ? a.place[row] : t;
      const auto position = LoadPack<kSize>(a.position + place * a.channels + c);
      for (int j = 0; j < kSize; ++j) sum.at[j] += position.at[j];
    }
    mask.Apply(b, t * a.channels + c, sum);
    StoreFloats(a.out + i, sum);
  }
};

// Position gradients, without `place`: for element i of [tokens, channels] the sum over the batch.
template <typename N>
struct AddPositionsEach {
  EmbeddingBackwardArgs<N> a;
  Mask mask;

  template <int kSize>
  __device__ void At(int64_t i) const {
    auto sum = LoadPack<kSize>(a.dposition + i);
    for (int64_t b = 0; b < a.batch; ++b) {
      auto dout = LoadFloats<kSize>(a.dout + b * a.tokens * a.channels + i);
      mask.Apply(b, i, dout);
      for (int j = 0; j < kSize; ++j) sum.at[j] += dout.at[j];
    }
    StorePack(a.dposition + i, sum);
  }
};

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kAtOnce = 4;                  // tokens that a thread looks at
constexpr int kChunk = kThreads * kAtOnce;  // and the block

struct Found {
  int of_warps[kWarps];
  int rows[kChunk];  // those with the token, in order
};

// Which of the rows [begin, begin + kAtOnce) within [first, last) have this token.
struct Same {
  bool at[kAtOnce];
  int count;
};
template <Access kAccess>
__device__ Same FindSame(const int32_t* tokens, int64_t begin, int64_t first, int64_t last,
                         int32_t token) {
  Pack<int32_t, kAtOnce> in = {};
  if (kAccess == Access::kPacks && begin + kAtOnce <= last) {
    in = LoadPack<kAtOnce>(tokens + begin);
  } else {
    for (int j = 0; j < kAtOnce; ++j)
      if (begin + j < last) in.at[j] = tokens[begin + j];
  }
  Same same = {};
  for (int j = 0; j < kAtOnce; ++j) {
    same.at[j] = first <= begin + j && begin + j < last && in.at[j] == token;
    same.count += same.at[j] ? 1 : 0;
  }
  return same;
}

// Sums of the threads' counts: of those before this thread's, and of all.
struct Place {
  int before, all;
};
__device__ Place PlaceInBlock(int count, int (&of_warps)[kWarps]) {
  int sum = count;
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = Shuffle(sum, Lane() >= step ? Lane() - step : Lane());
    if (Lane() >= step) sum += before;
  }
  SyncBlock();  // the previous chunk's entries have been read
  if (Lane() == kWarp - 1) of_warps[Warp()] = sum;
  SyncBlock();
  Place place = {sum - count, 0};
  for (int w = 0; w < kWarps; ++w) {
    if (w < Warp()) place.before += of_warps[w];
    place.all += of_warps[w];
  }
  return place;
}

enum class Drops { kNo, kYes };

// Adds `count` rows of dout to a row of dtable.
template <typename N, int kSize, Drops kDrops>
__device__ void AddRows(const EmbeddingBackwardArgs<N>& a, const Mask& mask, const int* rows,
                        int count, float* dtable) {
  for (int64_t c = Thread() * kSize; c < a.channels; c += kThreads * kSize) {
    auto sum = LoadPack<kSize>(dtable + c);
    for (int k = 0; k < count; ++k) {
      const int64_t row = rows[k];
      auto dout = LoadFloats<kSize>(a.dout + row * a.channels + c);
      if constexpr (kDrops == Drops::kYes) {
        const int64_t b = row / a.tokens, t = row - b * a.tokens;
        mask.Apply(b, t * a.channels + c, dout);
      }
      for (int j = 0; j < kSize; ++j) sum.at[j] += dout.at[j];
    }
    StorePack(dtable + c, sum);
  }
}

template <typename N, int kSize, Access kTokens, Drops kDrops>
__global__ void __launch_bounds__(kThreads) AddToTable(EmbeddingBackwardArgs<N> a, Mask mask) {
  auto& found = Shared<Found>();
  const int64_t row = BlockX(), rows = a.batch * a.tokens;
  const int32_t token = a.token[row];
  const int64_t entry = token - a.first;
  if (entry < 0 || entry >= a.vocabulary) return;
  const int mine = Thread() * kAtOnce;
  for (int64_t chunk = 0; chunk < row; chunk += kChunk) {
    const Same same = FindSame<kTokens>(a.token, chunk + mine, 0, row, token);
    if (PlaceInBlock(same.count, found.of_warps).all > 0) return;
  }
  for (int64_t chunk = row / kAtOnce * kAtOnce; chunk < rows; chunk += kChunk) {
    const Same same = FindSame<kTokens>(a.token, chunk + mine, row, rows, token);
    Place place = PlaceInBlock(same.count, found.of_warps);
    if (place.all == 0) continue;
    for (int j = 0; j < kAtOnce; ++j)
      if (same.at[j]) found.rows[place.before++] = static_cast<int>(chunk + mine + j);
    SyncBlock();
    AddRows<N, kSize, kDrops>(a, mask, found.rows, place.all, a.dtable + entry * a.channels);
  }
}

template <typename N, int kSize, Access kTokens>
void RunTable(const EmbeddingBackwardArgs<N>& args, Stream stream) {
  const Grid grid = {.x = args.batch * args.tokens, .threads = kThreads, .shared = sizeof(Found)};
  const Mask mask = MaskOf(args.dropout);
  if (mask.threshold > 0) {
    Launch<AddToTable<N, kSize, kTokens, Drops::kYes>>(grid, stream, args, mask);
  } else {
    Launch<AddToTable<N, kSize, kTokens, Drops::kNo>>(grid, stream, args, mask);
  }
}

template <typename N, int kSize>
void RunTable(const EmbeddingBackwardArgs<N>& args, Stream stream) {
  AccessOf(args.token) == Access::kPacks ? RunTable<N, kSize, Access::kPacks>(args, stream)
                                         : RunTable<N, kSize, Access::kSingle>(args, stream);
}

}  // namespace

template <typename N>
void EmbeddingForward(const EmbeddingForwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  LaunchForEach<kSize>(
      Both(AccessOf(args.table, args.position, args.out), AccessOfRows<kSize>(args.channels)),
      args.batch * args.tokens * args.channels, LookUpEach<N>{args, MaskOf(args.dropout)}, stream);
}
PP_INSTANTIATE_CUDA(EmbeddingForward)

template <typename N>
void EmbeddingBackward(const EmbeddingBackwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  const Access access =
      Both(AccessOf(args.dout, args.dtable, args.dposition), AccessOfRows<kSize>(args.channels));
  access == Access::kPacks ? RunTable<N, kSize>(args, stream) : RunTable<N, 1>(args, stream);
  if (args.dposition == nullptr) return;
  if (args.place != nullptr) {
    EmbeddingBackwardArgs<N> positions = args;
    positions.first = 0;
    positions.vocabulary = args.tokens;
    positions.token = args.place;
    positions.dtable = args.dposition;
    return access == Access::kPacks ? RunTable<N, kSize>(positions, stream)
                                    : RunTable<N, 1>(positions, stream);
  }
  LaunchForEach<kSize>(access, args.tokens * args.channels,
                       AddPositionsEach<N>{args, MaskOf(args.dropout)}, stream);
}
PP_INSTANTIATE_CUDA(EmbeddingBackward)

}  // namespace pp::kernels::cuda
