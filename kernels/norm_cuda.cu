// LayerNorm and RMSNorm on a GPU. Bound by memory: the forward moves 2 numbers an element, the
// backward 3, or 4 where it adds.
//
// Forward: a warp takes a row, which it reads three times, for the mean, the sum of squares and the
// result; the last two times from the first-level cache. Backward: a block takes every 256th row,
// and adds up gamma's and beta's gradients in shared memory, a column always in the same thread.
// The blocks' sums are then added in their order, so that no two runs differ.
#include "kernels/block.h"
#include "kernels/norm.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kForwardThreads = 256, kBackwardThreads = 256;
constexpr int kBackwardWarps = kBackwardThreads / kWarp;

// Whether there is a mean to take off: LayerNorm.
enum class Centre { kNo, kYes };

template <typename N, int kSize, Centre kCentre>
__global__ void __launch_bounds__(kForwardThreads) Forward(LayerNormForwardArgs<N> a) {
  const int64_t row = int64_t{BlockX()} * (kForwardThreads / kWarp) + Warp();
  if (row >= a.rows) return;
  const N* x = a.x + row * a.channels;
  N* y = a.y + row * a.channels;
  const float each = 1 / static_cast<float>(a.channels);
  float mean = 0;
  if constexpr (kCentre == Centre::kYes) {
    float sum = 0;
    for (int64_t c = Lane() * kSize; c < a.channels; c += kWarp * kSize) {
      const auto in = LoadPack<kSize>(x + c);
      for (int i = 0; i < kSize; ++i) sum += ToFloat(in.at[i]);
    }
    mean = WarpSum(sum) * each;
  }
  float squares = 0;
  for (int64_t c = Lane() * kSize; c < a.channels; c += kWarp * kSize) {
    const auto in = LoadPack<kSize>(x + c);
    for (int i = 0; i < kSize; ++i) {
      const float centred = ToFloat(in.at[i]) - mean;
      squares += centred * centred;
    }
  }
  const float rstd = 1 / sqrtf(WarpSum(squares) * each + a.epsilon);
  for (int64_t c = Lane() * kSize; c < a.channels; c += kWarp * kSize) {
    const auto in = LoadPack<kSize>(x + c);
    const auto gamma = LoadPack<kSize>(a.gamma + c);
    Pack<float, kSize> beta = {};
    if constexpr (kCentre == Centre::kYes) beta = LoadPack<kSize>(a.beta + c);
    Pack<N, kSize> out;
    for (int i = 0; i < kSize; ++i)
      out.at[i] = FromFloat<N>((ToFloat(in.at[i]) - mean) * rstd * gamma.at[i] + beta.at[i]);
    StorePack(y + c, out);
  }
  if (Lane() != 0) return;
  if constexpr (kCentre == Centre::kYes) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

struct Sums {
  float of_g, of_gn;
};

// Over the block, the same bits in all threads.
__device__ Sums BlockSum(Sums mine, Sums (&of_warps)[kBackwardWarps]) {
  mine = {WarpSum(mine.of_g), WarpSum(mine.of_gn)};
  SyncBlock();  // those of the row before are read
  if (Lane() == 0) of_warps[Warp()] = mine;
  SyncBlock();
  Sums sums = {0, 0};
  for (int w = 0; w < kBackwardWarps; ++w) {
    sums.of_g += of_warps[w].of_g;
    sums.of_gn += of_warps[w].of_gn;
  }
  return sums;
}

// Behind it lie dgamma's sums of this block, and dbeta's.
struct BackwardShared {
  Sums of_warps[kBackwardWarps];
};

template <typename N, int kSize, Centre kCentre>
__global__ void __launch_bounds__(kBackwardThreads, 2) Backward(LayerNormBackwardArgs<N> a) {
  auto& shared = Shared<BackwardShared>();
  float* dgamma = reinterpret_cast<float*>(&shared + 1);
  float* dbeta = dgamma + a.channels;
  const bool weights = a.dgamma != nullptr;
  const int64_t first = Thread() * kSize, stride = kBackwardThreads * kSize;
  for (int64_t c = first; weights && c < a.channels; c += stride)
    for (int i = 0; i < kSize; ++i) dgamma[c + i] = dbeta[c + i] = 0;
  for (int64_t row = BlockX(); row < a.rows; row += BlocksX()) {
    const N *x = a.x + row * a.channels, *dy = a.dy + row * a.channels;
    const float mean = kCentre == Centre::kYes ? a.mean[row] : 0, rstd = a.rstd[row];
    Sums mine = {0, 0};
    for (int64_t c = first; c < a.channels; c += stride) {
      const auto in = LoadPack<kSize>(x + c), dout = LoadPack<kSize>(dy + c);
      const auto gamma = LoadPack<kSize>(a.gamma + c);
      for (int i = 0; i < kSize; ++i) {
        const float d = ToFloat(dout.at[i]), n = (ToFloat(in.at[i]) - mean) * rstd;
        if (weights) {
          dgamma[c + i] += d * n;
          dbeta[c + i] += d;
        }
        mine.of_g += d * gamma.at[i];
        mine.of_gn += d * gamma.at[i] * n;
      }
    }
    if (a.dx == nullptr) continue;
    const Sums sums = BlockSum(mine, shared.of_warps);
    const float each = 1 / static_cast<float>(a.channels);
    const float mean_g = kCentre == Centre::kYes ? sums.of_g * each : 0;
    const float mean_gn = sums.of_gn * each;
    N* dx = a.dx + row * a.channels;
    for (int64_t c = first; c < a.channels; c += stride) {
      const auto in = LoadPack<kSize>(x + c), dout = LoadPack<kSize>(dy + c);
      const auto gamma = LoadPack<kSize>(a.gamma + c);
      Pack<N, kSize> out;
      if (a.dx_update == Update::kAdd) out = LoadPack<kSize>(dx + c);
      for (int i = 0; i < kSize; ++i) {
        const float n = (ToFloat(in.at[i]) - mean) * rstd;
        const float d = rstd * (ToFloat(dout.at[i]) * gamma.at[i] - mean_g - n * mean_gn);
        out.at[i] = FromFloat<N>(a.dx_update == Update::kAdd ? ToFloat(out.at[i]) + d : d);
      }
      StorePack(dx + c, out);
    }
  }
  float* part = a.scratch + int64_t{BlockX()} * 2 * a.channels;
  for (int64_t c = first; weights && c < a.channels; c += stride)
    for (int i = 0; i < kSize; ++i) {
      part[c + i] = dgamma[c + i];
      part[a.channels + c + i] = dbeta[c + i];
    }
}

// A thread takes a column of dgamma, or of dbeta.
template <typename N>
__global__ void __launch_bounds__(kBackwardThreads)
    AddParts(LayerNormBackwardArgs<N> a, int parts) {
  const int64_t c = int64_t{BlockX()} * kBackwardThreads + Thread();
  if (c >= (a.dbeta != nullptr ? 2 : 1) * a.channels) return;
  float sum = 0;
  for (int i = 0; i < parts; ++i) sum += a.scratch[i * 2 * a.channels + c];
  float* out = c < a.channels ? a.dgamma + c : a.dbeta + (c - a.channels);
  *out = a.update == Update::kAdd ? *out + sum : sum;
}

template <typename N, int kSize>
void RunForward(const LayerNormForwardArgs<N>& args, Stream stream) {
  const Grid grid = {.x = CeilDiv(args.rows, kForwardThreads / kWarp), .threads = kForwardThreads};
  if (args.mean != nullptr) {
    Launch<Forward<N, kSize, Centre::kYes>>(grid, stream, args);
  } else {
    Launch<Forward<N, kSize, Centre::kNo>>(grid, stream, args);
  }
}

template <typename N, int kSize>
void RunBackward(const LayerNormBackwardArgs<N>& args, Stream stream) {
  const int parts = static_cast<int>(args.rows < kNormParts ? args.rows : kNormParts);
  const int64_t sums = args.dgamma != nullptr ? 2 * args.channels : 0;
  const Grid grid = {.x = parts,
                     .threads = kBackwardThreads,
                     .shared = static_cast<int64_t>(sizeof(BackwardShared) + sums * sizeof(float))};
  if (args.mean != nullptr) {
    Launch<Backward<N, kSize, Centre::kYes>>(grid, stream, args);
  } else {
    Launch<Backward<N, kSize, Centre::kNo>>(grid, stream, args);
  }
  if (args.dgamma == nullptr) return;
  Launch<AddParts<N>>({.x = CeilDiv(sums, kBackwardThreads), .threads = kBackwardThreads}, stream,
                      args, parts);
}

}  // namespace

template <typename N>
void LayerNormForward(const LayerNormForwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  args.channels % kSize == 0 ? RunForward<N, kSize>(args, stream) : RunForward<N, 1>(args, stream);
}
PP_INSTANTIATE_CUDA(LayerNormForward)

template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  args.channels % kSize == 0 ? RunBackward<N, kSize>(args, stream)
                             : RunBackward<N, 1>(args, stream);
}
PP_INSTANTIATE_CUDA(LayerNormBackward)

}  // namespace pp::kernels::cuda
