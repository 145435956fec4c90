// AdamW on a GPU. Bound by memory: 28 bytes an element.
#include "kernels/adamw.h"
#include "kernels/block.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSize = kPackSize<float>;

struct Factors {
  float scale, correction1, correction2;
};

template <int kSize>
__device__ void UpdateAt(const AdamWArgs& a, const Factors& by, int64_t i) {
  const auto gradient = LoadPack<kSize>(a.gradient + i);
  auto m = LoadPack<kSize>(a.m + i), v = LoadPack<kSize>(a.v + i);
  auto weights = LoadPack<kSize>(a.weights + i);
  for (int j = 0; j < kSize; ++j) {
    const float g = by.scale * gradient.at[j];
    m.at[j] = a.beta1 * m.at[j] + (1 - a.beta1) * g;
    v.at[j] = a.beta2 * v.at[j] + (1 - a.beta2) * g * g;
    const float step = (m.at[j] / by.correction1) / (sqrtf(v.at[j] / by.correction2) + a.epsilon);
    weights.at[j] -= a.learning_rate * (step + a.decay * weights.at[j]);
  }
  StorePack(a.m + i, m);
  StorePack(a.v + i, v);
  StorePack(a.weights + i, weights);
}

__global__ void __launch_bounds__(kThreads) Update(AdamWArgs a) {
  if (a.clipped != nullptr && a.clipped->finite == 0) return;
  Factors by = {a.gradient_scale, a.correction1, a.correction2};
  if (a.clipped != nullptr) by.scale = a.clipped->scale;
  if (a.clipped != nullptr && a.clipped->correction1 != 0) {
    by.correction1 = a.clipped->correction1;
    by.correction2 = a.clipped->correction2;
  }
  const int64_t i = (int64_t{BlockX()} * kThreads + Thread()) * kSize;
  if (i + kSize <= a.n) return UpdateAt<kSize>(a, by, i);
  for (int64_t j = i; j < a.n; ++j) UpdateAt<1>(a, by, j);
}

}  // namespace

void AdamW(const AdamWArgs& args, Stream stream) {
  Launch<Update>({.x = CeilDiv(args.n, int64_t{kThreads} * kSize), .threads = kThreads}, stream,
                 args);
}

}  // namespace pp::kernels::cuda
