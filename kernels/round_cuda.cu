// Rounding on a GPU. Bound by memory: 6 bytes an element.
#include "kernels/elements_cuda.h"
#include "kernels/round.h"

namespace pp::kernels::cuda {
namespace {

struct RoundEach {
  RoundArgs a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    StoreFloats(a.y + i, LoadFloats<kSize>(a.x + i));
  }
};

}  // namespace

void Round(const RoundArgs& args, Stream stream) {
  LaunchForEach<kPackSize<BFloat16>>(AccessOf(args.x, args.y), args.n, RoundEach{args}, stream);
}

}  // namespace pp::kernels::cuda
