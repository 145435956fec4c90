#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

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
  const float root = 1 / correction2, keep = 1 - args.learning_rate * args.decay;
  const auto update = [&](Vec& w, Vec& m, Vec& v, Vec g) PP_LAMBDA {
    g *= scale;
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * (g * g);
    w = keep * w - rate * m / (Sqrt(v * root) + epsilon);
  };
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i + kLanes <= end; i += kLanes) {
      Vec w = Load(args.weights + i), m = Load(args.m + i), v = Load(args.v + i);
      update(w, m, v, Load(args.gradient + i));
      Store(args.weights + i, w);
      Store(args.m + i, m);
      Store(args.v + i, v);
    }
    if (i == end) return;
    const int64_t n = end - i;
    Vec w = LoadPart(args.weights + i, n), m = LoadPart(args.m + i, n), v = LoadPart(args.v + i, n);
    update(w, m, v, LoadPart(args.gradient + i, n));
    StorePart(args.weights + i, w, n);
    StorePart(args.m + i, m, n);
    StorePart(args.v + i, v, n);
  });
}

}  // namespace pp::kernels::PP_ISA
