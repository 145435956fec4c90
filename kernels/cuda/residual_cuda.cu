// The residual stream on a GPU. Memory-bound: three accesses per element.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/mask_cuda.h"
#include "kernels/residual.h"

namespace pp::kernels::cuda {
namespace {

template <typename N>
struct ResidualEach {
  ResidualArgs<N> a;
  Mask mask;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const int64_t at = a.range.first + i, row = at / a.range.sequence_elements;
    const auto x = LoadPack<kSize>(a.x + i);  // widened after the mask, which needs registers
    auto sum = LoadFloats<kSize>(a.y + i);
    mask.Apply(row, at - row * a.range.sequence_elements, sum);
    for (int j = 0; j < kSize; ++j) sum.at[j] += ToFloat(x.at[j]);
    StoreFloats(a.out + i, sum);
  }
};

}  // namespace

template <typename N>
void Residual(const ResidualArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  const Access access = Both(AccessOf(args.x, args.y, args.out),
                             AccessOfRows<kSize>(args.range.first, args.range.sequence_elements));
  LaunchForEach<kSize>(access, args.range.n, ResidualEach<N>{args, MaskOf(args.dropout)}, stream);
}
PP_INSTANTIATE_CUDA(Residual)

}  // namespace pp::kernels::cuda
