#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

void AdamW(const AdamWArgs& args) {
  constexpr int64_t kBlock = 65536;
  if (args.clipped != nullptr && args.clipped->finite == 0) return;
  const float scale = args.clipped != nullptr ? args.clipped->scale : args.gradient_scale;
  const float beta1 = args.beta1, beta2 = args.beta2;
  const bool counts = args.clipped != nullptr && args.clipped->correction1 != 0;
  const float correction1 = counts ? args.clipped->correction1 : args.correction1;
  const float correction2 = counts ? args.clipped->correction2 : args.correction2;
  const float rate = args.learning_rate / correction1, epsilon = args.epsilon;
  const float root = 1 / correction2;
  for (const AdamWTensor& a : args.tensors) {
    const float keep = 1 - args.learning_rate * a.decay;
    const auto update = [&](Vec& w, Vec& m, Vec& v, Vec g) PP_LAMBDA {
      g *= scale;
      m = beta1 * m + (1 - beta1) * g;
      v = beta2 * v + (1 - beta2) * (g * g);
      w = keep * w - rate * m / (Sqrt(v * root) + epsilon);
    };
    ParallelRanges(a.n, kBlock, [&](int64_t i, int64_t end) {
      for (; i + kLanes <= end; i += kLanes) {
        Vec w = Load(a.weights + i), m = Load(a.m + i), v = Load(a.v + i);
        update(w, m, v, Load(a.gradient + i));
        Store(a.weights + i, w);
        Store(a.m + i, m);
        Store(a.v + i, v);
      }
      if (i == end) return;
      const int64_t n = end - i;
      Vec w = LoadPart(a.weights + i, n), m = LoadPart(a.m + i, n), v = LoadPart(a.v + i, n);
      update(w, m, v, LoadPart(a.gradient + i, n));
      StorePart(a.weights + i, w, n);
      StorePart(a.m + i, m, n);
      StorePart(a.v + i, v, n);
    });
  }
}

}  // namespace pp::kernels::PP_ISA
