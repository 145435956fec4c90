// AdamW on a GPU. Memory-bound: 28 bytes per element, and 2 where it rounds.
#include "kernels/adamw.h"
#include "kernels/block/block.h"
#include "kernels/cuda/round_cuda.h"
#include "kernels/cuda/tensors_cuda.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSize = kPackSize<float>;

struct Factors {
  float scale, correction1, correction2;
};

// All but the tensors.
struct Options {
  float gradient_scale, learning_rate, beta1, beta2, epsilon, correction1, correction2;
  const Clipped* clipped;
};

template <int kSize>
__device__ Pack<float, kSize> Update(const AdamWTensor& a, const Options& o, const Factors& by,
                                     int64_t i) {
  const auto gradient = LoadPack<kSize>(a.gradient + i);
  auto m = LoadPack<kSize>(a.m + i), v = LoadPack<kSize>(a.v + i);
  auto weights = LoadPack<kSize>(a.weights + i);
  for (int j = 0; j < kSize; ++j) {
    const float g = by.scale * gradient.at[j];
    m.at[j] = o.beta1 * m.at[j] + (1 - o.beta1) * g;
    v.at[j] = o.beta2 * v.at[j] + (1 - o.beta2) * g * g;
    const float step = (m.at[j] / by.correction1) / (sqrtf(v.at[j] / by.correction2) + o.epsilon);
    weights.at[j] -= o.learning_rate * (step + a.decay * weights.at[j]);
  }
  StorePack(a.m + i, m);
  StorePack(a.v + i, v);
  StorePack(a.weights + i, weights);
  return weights;
}

template <Rounding kRounding, int kSize>
__device__ void StepAt(const AdamWTensor& a, const Options& o, const Factors& by, bool updates,
                       int64_t i) {
  const auto weights = updates ? Update<kSize>(a, o, by, i) : LoadPack<kSize>(a.weights + i);
  if constexpr (kRounding != Rounding::kNone)
    if (a.rounded != nullptr) StoreRounded<kRounding>(a.rounded, i, weights);
}

template <Rounding kRounding>
__global__ void __launch_bounds__(kThreads)
    Step(const __grid_constant__ TensorBatch<AdamWTensor> batch, Options o) {
  const bool updates = o.clipped == nullptr || o.clipped->finite != 0;
  if (kRounding == Rounding::kNone && !updates) return;
  Factors by = {o.gradient_scale, o.correction1, o.correction2};
  if (o.clipped != nullptr) by.scale = o.clipped->scale;
  if (o.clipped != nullptr && o.clipped->correction1 != 0) {
    by.correction1 = o.clipped->correction1;
    by.correction2 = o.clipped->correction2;
  }
  const TensorBlock place = FindTensor(batch);
  const AdamWTensor& a = batch.tensors[place.tensor];
  const int64_t i = (place.block * kThreads + Thread()) * kSize;
  if (i + kSize <= a.n) return StepAt<kRounding, kSize>(a, o, by, updates, i);
  for (int64_t j = i; j < a.n; ++j) StepAt<kRounding, 1>(a, o, by, updates, j);
}

}  // namespace

void AdamW(const AdamWArgs& a, Stream stream) {
  const auto blocks = [](int64_t n) { return CeilDiv(n, int64_t{kThreads} * kSize); };
  const Options options = {a.gradient_scale, a.learning_rate, a.beta1,       a.beta2,
                           a.epsilon,        a.correction1,   a.correction2, a.clipped};
  ForRounding(a.rounding, [&]<Rounding kRounding>() {
    LaunchTensors<Step<kRounding>>(a.tensors, blocks, {.threads = kThreads}, stream, options);
  });
}

}  // namespace pp::kernels::cuda
