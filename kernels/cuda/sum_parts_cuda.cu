// SumParts on a GPU. Memory-bound: count + 1 accesses per element, or count + 2.
//
// The addresses of the parts, an array on the host, are passed in the kernel's arguments. All are
// passed in one launch, as `out` may be any of the parts and must not be written before they all
// are read.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/sum_parts.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kFewParts = 16;  // enough for most sums: fewer arguments to copy at each launch

template <typename N, int kMost>
struct SumPartsEach {
  const N* parts[kMost];
  int count;
  N *out, *also;

  template <int kSize>
  __device__ void At(int64_t i) const {
    auto sum = LoadFloats<kSize>(parts[0] + i);
    for (int p = 1; p < count; ++p) {
      const auto part = LoadFloats<kSize>(parts[p] + i);
      for (int j = 0; j < kSize; ++j) sum.at[j] += part.at[j];
    }
    StoreFloats(out + i, sum);
    if (also != nullptr) StoreFloats(also + i, sum);
  }
};

template <int kMost, typename N>
void Run(const SumPartsArgs<N>& args, Stream stream) {
  SumPartsEach<N, kMost> each = {{}, static_cast<int>(args.count), args.out, args.also};
  Access access = AccessOf(args.out, args.also);
  for (int p = 0; p < each.count; ++p) {
    each.parts[p] = args.parts[p];
    access = Both(access, AccessOf(args.parts[p]));
  }
  LaunchForEach<kPackSize<N>>(access, args.n, each, stream);
}

}  // namespace

template <typename N>
void SumParts(const SumPartsArgs<N>& args, Stream stream) {
  args.count <= kFewParts ? Run<kFewParts>(args, stream) : Run<kMostParts>(args, stream);
}
PP_INSTANTIATE_CUDA(SumParts)

}  // namespace pp::kernels::cuda
