// The forward of LayerNorm and RMSNorm on a GPU. Memory-bound: it moves two values per element.
//
// A warp takes a row, and keeps it in registers. Rows that are too wide, or not made of whole
// packs, are read again, from the first-level cache.
#include "kernels/cuda/norm_cuda.h"
#include "kernels/norm.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kForwardThreads = 256;

// kPacks: a lane's packs of a row, which are in registers; or 0 if there are too many.
template <typename N, int kSize, Centre kCentre, int kPacks>
__global__ void __launch_bounds__(kForwardThreads) Forward(LayerNormForwardArgs<N> a) {
  const int64_t row = int64_t{BlockX()} * (kForwardThreads / kWarp) + Warp();
  if (row >= a.rows) return;
  const N* x = a.x + row * a.channels;
  N* y = a.y + row * a.channels;
  const float each = 1 / static_cast<float>(a.channels);
  const int64_t first = Lane() * kSize;
  constexpr int kStride = kWarp * kSize;
  Pack<N, kSize> held[kPacks > 0 ? kPacks : 1];
  PP_UNROLL
  for (int p = 0; p < kPacks; ++p)
    if (first + p * kStride < a.channels) held[p] = LoadPack<kSize>(x + first + p * kStride);
  const auto for_packs = [&](const auto& run) {
    if constexpr (kPacks == 0) {
      for (int64_t c = first; c < a.channels; c += kStride) run(c, LoadPack<kSize>(x + c));
    } else {
      PP_UNROLL
      for (int p = 0; p < kPacks; ++p)
        if (first + p * kStride < a.channels) run(first + p * kStride, held[p]);
      Forget(held);
    }
  };
  float mean = 0;
  if constexpr (kCentre == Centre::kYes) {
    float sum = 0;
    for_packs([&](int64_t, const Pack<N, kSize>& in) {
      for (int i = 0; i < kSize; ++i) sum += ToFloat(in.at[i]);
    });
    mean = WarpSum(sum) * each;
  }
  float squares = 0;
  for_packs([&](int64_t, const Pack<N, kSize>& in) {
    for (int i = 0; i < kSize; ++i) {
      const float centred = ToFloat(in.at[i]) - mean;
      squares += centred * centred;
    }
  });
  const float rstd = 1 / sqrtf(WarpSum(squares) * each + a.epsilon);
  for_packs([&](int64_t c, const Pack<N, kSize>& in) {
    const auto gamma = LoadPack<kSize>(a.gamma + c);
    Pack<float, kSize> beta = {};
    if constexpr (kCentre == Centre::kYes) beta = LoadPack<kSize>(a.beta + c);
    Pack<N, kSize> out;
    for (int i = 0; i < kSize; ++i)
      out.at[i] = FromFloat<N>((ToFloat(in.at[i]) - mean) * rstd * gamma.at[i] + beta.at[i]);
    StorePack(y + c, out);
  });
  if (Lane() != 0) return;
  if constexpr (kCentre == Centre::kYes) a.mean[row] = mean;
  a.rstd[row] = rstd;
}

template <typename N, int kSize, Centre kCentre>
void RunForward(const LayerNormForwardArgs<N>& args, Stream stream) {
  const Grid grid = {.x = CeilDiv(args.rows, kForwardThreads / kWarp), .threads = kForwardThreads};
  if constexpr (kSize > 1) {
    const int64_t packs = CeilDiv(args.channels, kWarp * kSize);
    if (packs <= 4) return Launch<Forward<N, kSize, kCentre, 4>>(grid, stream, args);
    if (packs <= 8) return Launch<Forward<N, kSize, kCentre, 8>>(grid, stream, args);
  }
  Launch<Forward<N, kSize, kCentre, 0>>(grid, stream, args);
}

}  // namespace

template <typename N>
void LayerNormForward(const LayerNormForwardArgs<N>& args, Stream stream) {
  ForSize<N>(args.channels, args.mean != nullptr,
             [&]<int kSize, Centre kCentre>() { RunForward<N, kSize, kCentre>(args, stream); });
}
PP_INSTANTIATE_CUDA(LayerNormForward)

}  // namespace pp::kernels::cuda
