// Fill and Add on a GPU. Memory-bound: 4 and 12 bytes per element.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/elementwise.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kSize = kPackSize<float>;

struct FillEach {
  FillArgs a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    Pack<float, kSize> out;
    for (float& x : out.at) x = a.value;
    StorePack(a.out + i, out);
  }
};

struct AddEach {
  AddArgs a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const auto x = LoadPack<kSize>(a.x + i);
    auto out = LoadPack<kSize>(a.out + i);
    for (int j = 0; j < kSize; ++j) out.at[j] += x.at[j];
    StorePack(a.out + i, out);
  }
};

}  // namespace

void Fill(const FillArgs& args, Stream stream) {
  LaunchForEach<kSize>(AccessOf(args.out), args.n, FillEach{args}, stream);
}
void Add(const AddArgs& args, Stream stream) {
  LaunchForEach<kSize>(AccessOf(args.x, args.out), args.n, AddEach{args}, stream);
}

}  // namespace pp::kernels::cuda
