// Rounding on a GPU. Bound by memory: 6 bytes an element.
#include "kernels/elements_cuda.h"
#include "kernels/round.h"

namespace pp::kernels::cuda {
namespace {

template <typename N>
struct RoundEach {
  RoundArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    StoreFloats(a.y + i, LoadFloats<kSize>(a.x + i));
  }
};

}  // namespace

template <typename N>
void Round(const RoundArgs<N>& args, Stream stream) {
  LaunchForEach<kPackSize<N>>(AccessOf(args.x, args.y), args.n, RoundEach<N>{args}, stream);
}
PP_HALVES(PP_INSTANTIATE_CUDA_OF, Round)

}  // namespace pp::kernels::cuda
