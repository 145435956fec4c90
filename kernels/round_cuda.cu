// Rounding on a GPU. Bound by memory: 6 bytes an element.
#include "kernels/block.h"
#include "kernels/round.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSize = kPackSize<BFloat16>;

__global__ void __launch_bounds__(kThreads) RoundAll(RoundArgs a) {
  const int64_t i = (int64_t{BlockX()} * kThreads + Thread()) * kSize;
  if (i + kSize <= a.n) {
    const auto x = LoadPack<kSize>(a.x + i);
    Pack<BFloat16, kSize> y;
    for (int j = 0; j < kSize; ++j) y.at[j] = FromFloat<BFloat16>(x.at[j]);
    StorePack(a.y + i, y);
  } else {
    for (int64_t j = i; j < a.n; ++j) a.y[j] = FromFloat<BFloat16>(a.x[j]);
  }
}

}  // namespace

void Round(const RoundArgs& args, Stream stream) {
  Launch<RoundAll>({.x = CeilDiv(args.n, int64_t{kThreads} * kSize), .threads = kThreads}, stream,
                   args);
}

}  // namespace pp::kernels::cuda
