// The backward of LayerNorm and RMSNorm on a GPU. Bound by memory: it moves 3 numbers an element, 4
// where it adds.
//
// A block takes every 512th row, or 256th. A thread owns columns, whose gamma and whose gradients
// of gamma and beta stay in its registers, as do its numbers of the row; those of the next row are
// under way meanwhile, and the block has one barrier a row. The blocks' sums are then added in one
// order, so that no two runs differ.
//
// Rows that are too wide, or not of whole packs, are read again, from the first-level cache, and
// their columns' sums are in shared memory.
#include "kernels/cuda/add_parts_cuda.h"
#include "kernels/cuda/norm_cuda.h"
#include "kernels/norm.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kBackwardThreads = 256;

struct Sums {
  float of_g, of_gn;
};

// Those of a row, from what each thread of the block has of them; the same bits in all threads. Two
// calls one after the other have not the same of_warps: warps may be in both.
template <Centre kCentre, int kWarps>
__device__ Sums BlockSum(Sums mine, Sums (&of_warps)[kWarps]) {
  if constexpr (kCentre == Centre::kYes) mine.of_g = WarpSum(mine.of_g);
  mine.of_gn = WarpSum(mine.of_gn);
  if (Lane() == 0) of_warps[Warp()] = mine;
  SyncBlock();
  Sums sums = {0, 0};
  const int warps = Threads() / kWarp;
  PP_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    sums.of_g += w < warps ? of_warps[w].of_g : 0;
    sums.of_gn += w < warps ? of_warps[w].of_gn : 0;
  }
  return sums;
}

// The most threads of a block that have so many packs of columns each.
constexpr int ThreadsOf(int packs) { return packs * kBackwardThreads; }

template <int kPacks>
struct BackwardShared {
  Sums of_warps[2][ThreadsOf(kPacks) / kWarp];  // of one row, and of the next
};

struct Statistics {
  float mean, rstd;
};
template <Centre kCentre, typename N>
__device__ Statistics StatisticsOf(const LayerNormBackwardArgs<N>& a, int64_t row) {
  return {kCentre == Centre::kYes ? a.mean[row] : 0, a.rstd[row]};
}

// Of a row, in columns side by side. add: or zeros.
template <typename N, int kSize>
struct Numbers {
  Pack<N, kSize> x, dy, add;
};

// Columns side by side.
template <int kSize>
struct Columns {
  Pack<float, kSize> gamma, dgamma, dbeta;
};

template <typename N, int kSize>
__device__ void AddNumbers(const Numbers<N, kSize>& numbers, Statistics of, Columns<kSize>& columns,
                           Sums& sums) {
  for (int i = 0; i < kSize; ++i) {
    const float d = ToFloat(numbers.dy.at[i]), n = (ToFloat(numbers.x.at[i]) - of.mean) * of.rstd;
    const float g = d * columns.gamma.at[i];
    columns.dgamma.at[i] += d * n;
    columns.dbeta.at[i] += d;
    sums.of_g += g;
    sums.of_gn += g * n;
  }
}

template <typename N, int kSize>
__device__ Pack<N, kSize> InputGradient(const Numbers<N, kSize>& numbers, Statistics of,
                                        const Pack<float, kSize>& gamma, Sums means) {
  Pack<N, kSize> out;
  for (int i = 0; i < kSize; ++i) {
    const float g = ToFloat(numbers.dy.at[i]) * gamma.at[i];
    const float n = (ToFloat(numbers.x.at[i]) - of.mean) * of.rstd;
    out.at[i] =
        FromFloat<N>(ToFloat(numbers.add.at[i]) + of.rstd * (g - means.of_g - n * means.of_gn));
  }
  return out;
}

// From the sums over a row.
template <Centre kCentre>
__device__ Sums MeansOf(Sums sums, float each) {
  return {kCentre == Centre::kYes ? sums.of_g * each : 0, sums.of_gn * each};
}

// A pack in whole registers, so that nothing waits for it before its numbers are needed: nvcc puts
// each number of two bytes into a register of its own as soon as it is there.
struct Words {
  uint32_t at[4];
};
template <typename N>
__device__ Words LoadWords(const N* from) {
  Words words;
  memcpy(&words, __builtin_assume_aligned(from, sizeof(words)), sizeof(words));
  return words;
}
template <typename N, int kSize>
__device__ Pack<N, kSize> PackOf(const Words& words) {
  Pack<N, kSize> pack;
  static_assert(sizeof(pack) == sizeof(words));
  memcpy(&pack, &words, sizeof(words));
  return pack;
}

// A thread has kPacks packs of columns.
template <typename N, int kSize, Centre kCentre, int kPacks>
__global__ void __launch_bounds__(ThreadsOf(kPacks)) Backward(LayerNormBackwardArgs<N> a) {
  auto& shared = Shared<BackwardShared<kPacks>>();
  const float each = 1 / static_cast<float>(a.channels);
  const int first = Thread() * kSize, stride = Threads() * kSize;
  struct Row {
    Words x[kPacks], dy[kPacks], add[kPacks];
  };
  const auto load = [&](int64_t row) {
    Row loaded = {};
    if (row >= a.rows) return loaded;
    PP_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = first + p * stride;
      if (c >= a.channels) continue;
      loaded.x[p] = LoadWords(a.x + row * a.channels + c);
      loaded.dy[p] = LoadWords(a.dy + row * a.channels + c);
      if (a.add != nullptr) loaded.add[p] = LoadWords(a.add + row * a.channels + c);
    }
    return loaded;
  };
  const auto numbers_of = [](const Row& row, int p) -> Numbers<N, kSize> {
    return {PackOf<N, kSize>(row.x[p]), PackOf<N, kSize>(row.dy[p]), PackOf<N, kSize>(row.add[p])};
  };
  Row next = load(BlockX());
  Columns<kSize> own[kPacks] = {};
  PP_UNROLL
  for (int p = 0; p < kPacks; ++p)
    if (first + p * stride < a.channels)
      own[p].gamma = LoadPack<kSize>(a.gamma + first + p * stride);
  // Of a row each, 32 rows in all. What is the same in all lanes would be waited for at once, as it
  // goes to a uniform register.
  Statistics of_lanes;
  int turn = 0;
  PP_NO_UNROLL
  for (int64_t row = BlockX(); row < a.rows; row += BlocksX(), ++turn) {
    Row now = next;
    next = load(row + BlocksX());
    if (turn % kWarp == 0) {
      const int64_t later = row + int64_t{Lane()} * BlocksX();
      of_lanes = StatisticsOf<kCentre>(a, later < a.rows ? later : row);
    }
    const Statistics of = {Shuffle(of_lanes.mean, turn % kWarp),
                           Shuffle(of_lanes.rstd, turn % kWarp)};
    Sums mine = {0, 0};
    PP_UNROLL
    for (int p = 0; p < kPacks; ++p) AddNumbers(numbers_of(now, p), of, own[p], mine);
    if (a.dx == nullptr) continue;
    const Sums means = MeansOf<kCentre>(BlockSum<kCentre>(mine, shared.of_warps[turn % 2]), each);
    Forget(now);
    PP_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const int c = first + p * stride;
      if (c < a.channels)
        StorePack(a.dx + row * a.channels + c,
                  InputGradient(numbers_of(now, p), of, own[p].gamma, means));
    }
  }
  float* part = a.scratch + int64_t{BlockX()} * 2 * a.channels;
  PP_UNROLL
  for (int p = 0; p < kPacks; ++p) {
    const int c = first + p * stride;
    if (a.dgamma == nullptr || c >= a.channels) continue;
    StorePack(part + c, own[p].dgamma);
    if constexpr (kCentre == Centre::kYes) StorePack(part + a.channels + c, own[p].dbeta);
  }
}

template <int kSize, typename N>
__device__ Numbers<N, kSize> LoadNumbers(const LayerNormBackwardArgs<N>& a, int64_t at) {
  Numbers<N, kSize> numbers = {LoadPack<kSize>(a.x + at), LoadPack<kSize>(a.dy + at), {}};
  if (a.add != nullptr) numbers.add = LoadPack<kSize>(a.add + at);
  return numbers;
}

// Of rows too wide for that. Behind BackwardShared lie dgamma's sums of this block, and dbeta's.
template <typename N, int kSize, Centre kCentre>
__global__ void __launch_bounds__(kBackwardThreads, 2) BackwardWide(LayerNormBackwardArgs<N> a) {
  auto& shared = Shared<BackwardShared<1>>();
  float* dgamma = reinterpret_cast<float*>(&shared + 1);
  float* dbeta = dgamma + a.channels;
  const bool weights = a.dgamma != nullptr;
  const float each = 1 / static_cast<float>(a.channels);
  const auto for_columns = [&](const auto& run) {
    for (int64_t c = Thread() * kSize; c < a.channels; c += kBackwardThreads * kSize) run(c);
  };
  for_columns([&](int64_t c) {
    if (weights) StorePack(dgamma + c, Pack<float, kSize>{});
    if (weights) StorePack(dbeta + c, Pack<float, kSize>{});
  });
  int turn = 0;
  for (int64_t row = BlockX(); row < a.rows; row += BlocksX()) {
    const Statistics statistics = StatisticsOf<kCentre>(a, row);
    Sums mine = {0, 0};
    for_columns([&](int64_t c) {
      Columns<kSize> columns = {LoadPack<kSize>(a.gamma + c), {}, {}};
      if (weights) columns.dgamma = LoadPack<kSize>(dgamma + c);
      if (weights) columns.dbeta = LoadPack<kSize>(dbeta + c);
      AddNumbers(LoadNumbers<kSize>(a, row * a.channels + c), statistics, columns, mine);
      if (weights) StorePack(dgamma + c, columns.dgamma);
      if (weights) StorePack(dbeta + c, columns.dbeta);
    });
    if (a.dx == nullptr) continue;
    const Sums means = MeansOf<kCentre>(BlockSum<kCentre>(mine, shared.of_warps[turn]), each);
    turn ^= 1;
    for_columns([&](int64_t c) {
      const auto gamma = LoadPack<kSize>(a.gamma + c);
      const auto numbers = LoadNumbers<kSize>(a, row * a.channels + c);
      StorePack(a.dx + row * a.channels + c, InputGradient(numbers, statistics, gamma, means));
    });
  }
  float* part = a.scratch + int64_t{BlockX()} * 2 * a.channels;
  for_columns([&](int64_t c) {
    if (weights) StorePack(part + c, LoadPack<kSize>(dgamma + c));
    if (weights) StorePack(part + a.channels + c, LoadPack<kSize>(dbeta + c));
  });
}

// Columns of dgamma and dbeta, side by side.
template <typename N>
__global__ void __launch_bounds__(kAddWarps* kWarp)
    AddParts(LayerNormBackwardArgs<N> a, int parts) {
  const int64_t c = int64_t{BlockX()} * kWarp + Lane();
  const bool inside = c < (a.dbeta != nullptr ? 2 : 1) * a.channels;
  const float all = SumOfParts(a.scratch + c, 2 * a.channels, parts, inside);
  if (Warp() != 0 || !inside) return;
  float* out = c < a.channels ? a.dgamma + c : a.dbeta + (c - a.channels);
  *out = a.update == Update::kAdd ? *out + all : all;
}

// Launches, of these blocks, Backward where a row fits.
template <typename N, int kSize, Centre kCentre>
void RunRows(const LayerNormBackwardArgs<N>& args, int64_t blocks, Stream stream) {
  if constexpr (kSize > 1) {
    const int64_t packs = args.channels / kSize;
    const auto grid = [&]<int kPacks>() -> Grid {
      return {.x = blocks,
              .threads = static_cast<int>(CeilDiv(packs, kPacks * kWarp) * kWarp),
              .shared = sizeof(BackwardShared<kPacks>)};
    };
    if (packs <= ThreadsOf(1))
      return Launch<Backward<N, kSize, kCentre, 1>>(grid.template operator()<1>(), stream, args);
    if (packs <= 2 * ThreadsOf(2))
      return Launch<Backward<N, kSize, kCentre, 2>>(grid.template operator()<2>(), stream, args);
  }
  constexpr int64_t kSharedBytes = 163 * 1024;  // that an sm_80 gives a block, and an sm_90
  static_assert(sizeof(BackwardShared<1>) + 8 * kMostChannels <= kSharedBytes);
  const int64_t sums = args.dgamma != nullptr ? 2 * args.channels : 0;
  Launch<BackwardWide<N, kSize, kCentre>>(
      {.x = blocks,
       .threads = kBackwardThreads,
       .shared = static_cast<int64_t>(sizeof(BackwardShared<1>) + sums * sizeof(float))},
      stream, args);
}

template <typename N, int kSize, Centre kCentre>
void RunBackward(const LayerNormBackwardArgs<N>& args, Stream stream) {
  // Wide blocks are fewer, so that all of them run at once.
  const int64_t most = args.channels <= kBackwardThreads / 2 * kSize ? kNormParts : kNormParts / 2;
  const int64_t blocks = args.rows < most ? args.rows : most;
  RunRows<N, kSize, kCentre>(args, blocks, stream);
  if (args.dgamma == nullptr) return;
  const int64_t sums = (args.dbeta != nullptr ? 2 : 1) * args.channels;
  Launch<AddParts<N>>(AddGrid(CeilDiv(sums, kWarp), blocks), stream, args,
                      static_cast<int>(blocks));
}

}  // namespace

template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args, Stream stream) {
  ForSize<N>(args.channels, args.mean != nullptr,
             [&]<int kSize, Centre kCentre>() { RunBackward<N, kSize, kCentre>(args, stream); });
}
PP_INSTANTIATE_CUDA(LayerNormBackward)

}  // namespace pp::kernels::cuda
