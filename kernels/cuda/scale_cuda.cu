// x *= factor on a GPU. Memory-bound: two accesses per element.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/scale.h"

namespace pp::kernels::cuda {
namespace {

template <typename N>
struct ScaleEach {
  ScaleArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    auto x = LoadFloats<kSize>(a.x + i);
    for (int j = 0; j < kSize; ++j) x.at[j] *= a.factor;
    StoreFloats(a.x + i, x);
  }
};

}  // namespace

template <typename N>
void Scale(const ScaleArgs<N>& args, Stream stream) {
  LaunchForEach<kPackSize<N>>(AccessOf(args.x), args.n, ScaleEach<N>{args}, stream);
}
PP_INSTANTIATE_CUDA(Scale)

}  // namespace pp::kernels::cuda
