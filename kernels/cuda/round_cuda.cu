// Rounding weights on a GPU. Memory-bound: 6 bytes per element.
#include "kernels/cuda/round_cuda.h"

namespace pp::kernels::cuda {
namespace {

template <Rounding kRounding>
struct RoundEach {
  RoundArgs a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    StoreRounded<kRounding>(a.y, i, LoadPack<kSize>(a.x + i));
  }
};

}  // namespace

void Round(const RoundArgs& args, Stream stream) {
  const Access access = AccessOf(args.x, static_cast<const char*>(args.y));
  ForRounding(args.rounding, [&]<Rounding kRounding>() {
    if constexpr (kRounding != Rounding::kNone)
      LaunchForEach<kPackSize<BFloat16>>(access, args.n, RoundEach<kRounding>{args}, stream);
  });
}

}  // namespace pp::kernels::cuda
