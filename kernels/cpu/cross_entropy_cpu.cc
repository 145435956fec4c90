#include <math.h>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int kStrands = 4;

// statistics = the largest x, sum of exp(x - largest). A NaN is lost in the first, but not in the
// second.
template <typename N>
void Statistics(const N* x, int64_t n, float* statistics) {
  const float lowest = -__builtin_inff();
  Vec most[kStrands], sum[kStrands];
  for (int s = 0; s < kStrands; ++s) most[s] = Broadcast(lowest), sum[s] = Broadcast(0);
  int64_t i = 0;
  for (; i + kStrands * kLanes <= n; i += kStrands * kLanes) {
    for (int s = 0; s < kStrands; ++s) most[s] = Max(Load(x + i + s * kLanes), most[s]);
  }
  const int64_t whole = i;
  for (; i < n; i += kLanes) {
    const Vec v = i + kLanes <= n ? Load(x + i) : LoadPart(x + i, n - i, lowest);
    most[0] = Max(v, most[0]);
  }
  const float largest = Largest(Max(Max(most[0], most[1]), Max(most[2], most[3])));
  for (i = 0; i < whole; i += kStrands * kLanes) {
    for (int s = 0; s < kStrands; ++s) sum[s] += Exp(Load(x + i + s * kLanes) - largest);
  }
  for (; i < n; i += kLanes) {
    const Vec v = i + kLanes <= n ? Load(x + i) : LoadPart(x + i, n - i, lowest);
    sum[0] += Exp(v - largest);
  }
  statistics[0] = largest;
  statistics[1] = Sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename Args>
float ScaleOf(const Args& args) {
  return args.scaling != nullptr ? args.scale * args.scaling->scale : args.scale;
}

// dlogits of a row from its logits, at the same place or not; `target` counts from its first one.
template <typename N>
void Gradient(const N* x, int64_t n, int64_t target, float largest, float log_sum, float scale,
              N* out) {
  const auto part = [&](Vec logits) PP_LAMBDA { return Exp(logits - largest - log_sum) * scale; };
  // Rounded once: what remains of the target's 1 can be small.
  const bool here = 0 <= target && target < n;
  const Vec of_target = here ? part(Broadcast(ToFloat(x[target]))) - scale : Broadcast(0);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, part(Load(x + i)));
  if (i < n) StorePart(out + i, part(LoadPart(x + i, n - i)), n - i);
  if (here) StorePart(out + target, of_target, 1);
}

}  // namespace

template <typename N>
void CrossEntropyForward(const CrossEntropyForwardArgs<N>& args) {
  const int64_t n = args.vocabulary;
  const int64_t stride = args.row_stride ? args.row_stride : n;
  const float scale = ScaleOf(args);
  ParallelFor(args.rows, [&](int64_t row, int) {
    const N* x = args.logits + row * stride;
    N* out = args.dlogits != nullptr ? args.dlogits + row * stride : nullptr;
    const int64_t target = args.target[row];
    const int64_t tokens = target == kIgnored ? 0 : n;
    for (int64_t i = tokens; out != nullptr && i < n + args.padding; ++i) out[i] = {};
    if (target == kIgnored) {
      args.losses[row] = 0;
      return;
    }
    float statistics[2];
    Statistics(x, n, statistics);
    const float largest = statistics[0], log_sum = logf(statistics[1]);
    args.losses[row] = static_cast<double>(largest) - ToFloat(x[target]) + log_sum;
    if (out != nullptr) Gradient(x, n, target, largest, log_sum, scale, out);
  });
  if (args.loss == nullptr) return;
  double loss = 0;
  for (int64_t row = 0; row < args.rows; ++row) loss += args.losses[row];
  *args.loss = loss;
}

template <typename N>
void CrossEntropyPart(const CrossEntropyPartArgs<N>& args) {
  const int64_t stride = args.row_stride ? args.row_stride : args.vocabulary;
  ParallelFor(args.rows, [&](int64_t row, int) {
    float* part = args.part + 3 * row;
    part[0] = -__builtin_inff(), part[1] = part[2] = 0;
    if (args.target[row] == kIgnored || args.vocabulary == 0) return;
    const N* logits = args.logits + row * stride;
    Statistics(logits, args.vocabulary, part);
    const int64_t target = args.target[row] - args.first;
    if (0 <= target && target < args.vocabulary) part[2] = ToFloat(logits[target]);
  });
}

void CrossEntropyJoin(const CrossEntropyJoinArgs& args) {
  double loss = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    float* statistics = args.statistics + 2 * row;
    statistics[0] = statistics[1] = 0;
    if (args.target[row] == kIgnored) continue;
    const auto part = [&](int64_t p) { return args.all + 3 * (p * args.rows + row); };
    float largest = part(0)[0], sum = 0, target = 0;
    for (int64_t p = 1; p < args.parts; ++p)
      if (part(p)[0] > largest) largest = part(p)[0];
    for (int64_t p = 0; p < args.parts; ++p) {
      if (part(p)[0] > -__builtin_inff() || part(p)[1] != 0)
        sum += part(p)[1] * expf(part(p)[0] - largest);
      target += part(p)[2];
    }
    statistics[0] = largest;
    statistics[1] = logf(sum);
    loss += static_cast<double>(largest) - target + statistics[1];
  }
  if (args.loss != nullptr) *args.loss = loss;
}

template <typename N>
void CrossEntropyBackward(const CrossEntropyBackwardArgs<N>& args) {
  const int64_t n = args.vocabulary;
  const int64_t stride = args.row_stride ? args.row_stride : n;
  const float scale = ScaleOf(args);
  ParallelFor(args.rows, [&](int64_t row, int) {
    N* x = args.logits + row * stride;
    const bool ignored = args.target[row] == kIgnored;
    for (int64_t i = ignored ? 0 : n; i < n + args.padding; ++i) x[i] = {};
    if (!ignored)
      Gradient(x, n, args.target[row] - args.first, args.statistics[2 * row],
               args.statistics[2 * row + 1], scale, x);
  });
}

PP_INSTANTIATE(CrossEntropyForward)
PP_INSTANTIATE(CrossEntropyPart)
PP_INSTANTIATE(CrossEntropyBackward)

}  // namespace pp::kernels::PP_ISA
