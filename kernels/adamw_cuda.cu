// AdamW on a GPU. Bound by memory: 28 bytes an element.
#include "kernels/adamw.h"
#include "kernels/elements_cuda.h"

namespace pp::kernels::cuda {
namespace {

struct AdamWEach {
  AdamWArgs a;

  template <int kSize>
  __device__ void At(int64_t i) const {
    if (a.clipped != nullptr && a.clipped->finite == 0) return;
    float scale = a.gradient_scale, correction1 = a.correction1, correction2 = a.correction2;
    if (a.clipped != nullptr) scale = a.clipped->scale;
    if (a.clipped != nullptr && a.clipped->correction1 != 0) {
      correction1 = a.clipped->correction1;
      correction2 = a.clipped->correction2;
    }
    const auto gradient = LoadPack<kSize>(a.gradient + i);
    auto m = LoadPack<kSize>(a.m + i), v = LoadPack<kSize>(a.v + i);
    auto weights = LoadPack<kSize>(a.weights + i);
    for (int j = 0; j < kSize; ++j) {
      const float g = scale * gradient.at[j];
      m.at[j] = a.beta1 * m.at[j] + (1 - a.beta1) * g;
      v.at[j] = a.beta2 * v.at[j] + (1 - a.beta2) * g * g;
      const float step = (m.at[j] / correction1) / (sqrtf(v.at[j] / correction2) + a.epsilon);
      weights.at[j] -= a.learning_rate * (step + a.decay * weights.at[j]);
    }
    StorePack(a.m + i, m);
    StorePack(a.v + i, v);
    StorePack(a.weights + i, weights);
  }
};

}  // namespace

void AdamW(const AdamWArgs& args, Stream stream) {
  LaunchForEach<kPackSize<float>>(AccessOf(args.weights, args.m, args.v, args.gradient), args.n,
                                  AdamWEach{args}, stream);
}

}  // namespace pp::kernels::cuda
