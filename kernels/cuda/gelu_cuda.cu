// GELU on a GPU. Memory-bound: two accesses per element forward, three backward.
//
// With e = exp(-2u), (1 + tanh u)/2 = 1/(1 + e), which stays accurate for large negative u.
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/fast_math.h"
#include "kernels/gelu.h"

namespace pp::kernels::cuda {
namespace {

constexpr float kCubic = 0.044715f;
constexpr float kTwoRoot = 1.5957691216057308f;  // 2 * sqrt(2/pi)

// Beyond this, GELU is 0 or x, and its slope 0 or 1, to the last bit of a normal number.
constexpr float kFar = 16;
// The largest exponent whose exponential FastDivide can still divide by.
constexpr float kLargest = 80;

// A comparison leaves a NaN alone, which fminf would not.
__device__ float ExpOfMinus2U(float x) {
  const float v = -kTwoRoot * x * (1 + kCubic * x * x);
  return FastExp(v > kLargest ? kLargest : v);
}

// Far below 0: 0, and NaN for minus infinity, as by the formula.
__device__ float ByTanh(float x) { return FastDivide(x < -kFar ? x * 0 : x, 1 + ExpOfMinus2U(x)); }

__device__ float SlopeByTanh(float x) {
  x = x > kFar ? kFar : x;  // its square must not overflow
  x = x < -kFar ? -kFar : x;
  const float e = ExpOfMinus2U(x), s = FastDivide(1, 1 + e);  // and e*s = 1 - s
  return s + x * s * (e * s) * (kTwoRoot * (1 + 3 * kCubic * x * x));
}

// P(x) of N(0, 1).
__device__ float Distribution(float x) { return 0.5f * erfcf(x * -0.70710678f); }

__device__ float Exactly(float x) { return (x < -kFar ? x * 0 : x) * Distribution(x); }

__device__ float ExactSlope(float x) {
  constexpr float kPeak = 0.39894228f;  // 1 / sqrt(2 pi)
  x = x > kFar ? kFar : x;
  x = x < -kFar ? -kFar : x;
  return Distribution(x) + x * kPeak * FastExp(-0.5f * x * x);
}

template <typename N, GeluForm kForm>
struct GeluForwardEach {
  GeluForwardArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    auto x = LoadFloats<kSize>(a.x + i);
    for (int j = 0; j < kSize; ++j)
      x.at[j] = kForm == GeluForm::kExact ? Exactly(x.at[j]) : ByTanh(x.at[j]);
    StoreFloats(a.y + i, x);
  }
};

template <typename N, GeluForm kForm>
struct GeluBackwardEach {
  GeluBackwardArgs<N> a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    const auto x = LoadFloats<kSize>(a.x + i);
    auto d = LoadFloats<kSize>(a.dy + i);
    for (int j = 0; j < kSize; ++j)
      d.at[j] *= kForm == GeluForm::kExact ? ExactSlope(x.at[j]) : SlopeByTanh(x.at[j]);
    StoreFloats(a.dx + i, d);
  }
};

template <typename N, GeluForm kForm>
void RunForward(const GeluForwardArgs<N>& args, Stream stream) {
  LaunchForEach<kPackSize<N>>(AccessOf(args.x, args.y), args.n, GeluForwardEach<N, kForm>{args},
                              stream);
}

template <typename N, GeluForm kForm>
void RunBackward(const GeluBackwardArgs<N>& args, Stream stream) {
  LaunchForEach<kPackSize<N>>(AccessOf(args.x, args.dy, args.dx), args.n,
                              GeluBackwardEach<N, kForm>{args}, stream);
}

}  // namespace

template <typename N>
void GeluForward(const GeluForwardArgs<N>& args, Stream stream) {
  args.form == GeluForm::kExact ? RunForward<N, GeluForm::kExact>(args, stream)
                                : RunForward<N, GeluForm::kTanh>(args, stream);
}
PP_INSTANTIATE_CUDA(GeluForward)

template <typename N>
void GeluBackward(const GeluBackwardArgs<N>& args, Stream stream) {
  args.form == GeluForm::kExact ? RunBackward<N, GeluForm::kExact>(args, stream)
                                : RunBackward<N, GeluForm::kTanh>(args, stream);
}
PP_INSTANTIATE_CUDA(GeluBackward)

}  // namespace pp::kernels::cuda
