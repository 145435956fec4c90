// SwiGLU on a GPU. Memory-bound: three accesses per element of y forward, five backward.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/fast_math.h"
#include "kernels/swiglu.h"

namespace pp::kernels::cuda {
namespace {

// s = 1/(1 + exp(-x)) and 1 - s, both fully accurate: near 1 a quotient that is off by two units
// would leave nothing of 1 - s.
struct Sigmoid {
  float s, rest;
};
__device__ Sigmoid SigmoidOf(float x) {
  const float e = FastExp(-fabsf(x)), large = FastDivide(1, 1 + e), small = e * large;
  return x >= 0 ? Sigmoid{large, small} : Sigmoid{small, large};
}

template <typename N>
struct SwiGluForwardEach {
  SwiGluForwardArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const int64_t gate = i + i / a.columns * a.columns;
    const auto g = LoadFloats<kSize>(a.x + gate);
    auto up = LoadFloats<kSize>(a.x + gate + a.columns);
    for (int j = 0; j < kSize; ++j) up.at[j] *= g.at[j] * SigmoidOf(g.at[j]).s;
    StoreFloats(a.y + i, up);
  }
};

template <typename N>
struct SwiGluBackwardEach {
  SwiGluBackwardArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const int64_t gate = i + i / a.columns * a.columns, up = gate + a.columns;
    auto g = LoadFloats<kSize>(a.x + gate);
    auto u = LoadFloats<kSize>(a.x + up);
    const auto dy = LoadFloats<kSize>(a.dy + i);
    for (int j = 0; j < kSize; ++j) {
      const Sigmoid sigmoid = SigmoidOf(g.at[j]);
      const float y = g.at[j] * sigmoid.s;
      g.at[j] = dy.at[j] * u.at[j] * (sigmoid.s + y * sigmoid.rest);
      u.at[j] = dy.at[j] * y;
    }
    StoreFloats(a.dx + gate, g);
    StoreFloats(a.dx + up, u);
  }
};

}  // namespace

template <typename N>
void SwiGluForward(const SwiGluForwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  LaunchForEach<kSize>(Both(AccessOf(args.x, args.y), AccessOfRows<kSize>(args.columns)),
                       args.rows * args.columns, SwiGluForwardEach<N>{args}, stream);
}
PP_INSTANTIATE_CUDA(SwiGluForward)

template <typename N>
void SwiGluBackward(const SwiGluBackwardArgs<N>& args, Stream stream) {
  constexpr int kSize = kPackSize<N>;
  LaunchForEach<kSize>(Both(AccessOf(args.x, args.dy, args.dx), AccessOfRows<kSize>(args.columns)),
                       args.rows * args.columns, SwiGluBackwardEach<N>{args}, stream);
}
PP_INSTANTIATE_CUDA(SwiGluBackward)

}  // namespace pp::kernels::cuda
