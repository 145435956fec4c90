// Dropout on a GPU. Memory-bound: two accesses per element.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/mask_cuda.h"
#include "kernels/dropout.h"

namespace pp::kernels::cuda {
namespace {

template <typename N>
struct DropoutEach {
  DropoutArgs<N> a;
  Mask mask;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const int64_t at = a.range.first + i, row = at / a.range.sequence_elements;
    auto x = LoadFloats<kSize>(a.x + i);
    mask.Apply(row, at - row * a.range.sequence_elements, x);
    StoreFloats(a.out + i, x);
  }
};

}  // namespace

template <typename N>
void Dropout(const DropoutArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  const Access access = Both(AccessOf(args.x, args.out),
                             AccessOfRows<kSize>(args.range.first, args.range.sequence_elements));
  LaunchForEach<kSize>(access, args.range.n, DropoutEach<N>{args, MaskOf(args.dropout)}, stream);
}
PP_INSTANTIATE_CUDA(Dropout)

}  // namespace pp::kernels::cuda
