#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

template <typename N>
void TurnHead(N* x, int64_t half, const float* cosine, const float* sine, float sign) {
  const auto turn = [&](auto load, auto store, int64_t i) PP_LAMBDA {
    const Vec c = load(cosine + i), s = load(sine + i) * sign;
    const Vec low = load(x + i), high = load(x + half + i);
    store(x + i, low * c - high * s);
    store(x + half + i, high * c + low * s);
  };
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    turn([](const auto* p) PP_LAMBDA { return Load(p); },
         [](auto* p, Vec v) PP_LAMBDA { Store(p, v); }, i);
  }
  const int64_t left = half - i;
  if (left > 0) {
    turn([&](const auto* p) PP_LAMBDA { return LoadPart(p, left); },
         [&](auto* p, Vec v) PP_LAMBDA { StorePart(p, v, left); }, i);
  }
}

}  // namespace

template <typename N>
void Rope(const RopeArgs<N>& args) {
  const int64_t half = args.head_dim / 2;
  const float sign = args.turn == Turn::kForward ? 1 : -1;
  ParallelFor(args.batch * args.tokens, [&](int64_t row, int) {
    const int64_t t = args.position != nullptr ? args.position[row] : row % args.tokens;
    for (int64_t h = 0; h < args.heads; ++h) {
      TurnHead(args.x + row * args.row_stride + h * args.head_dim, half, args.cosine + t * half,
               args.sine + t * half, sign);
    }
  });
}

PP_INSTANTIATE(Rope)

}  // namespace pp::kernels::PP_ISA
