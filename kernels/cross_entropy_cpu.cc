#include <math.h>

#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

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

}  // namespace

template <typename N>
void CrossEntropyForward(const CrossEntropyForwardArgs<N>& args) {
  const int64_t stride = args.row_stride ? args.row_stride : args.vocabulary;
  ParallelFor(args.rows, [&](int64_t row, int) {
    float* statistics = args.statistics + 2 * row;
    if (args.target[row] == kIgnored) {
      statistics[0] = statistics[1] = 0;
    } else {
      Statistics(args.logits + row * stride, args.vocabulary, statistics);
      statistics[1] = logf(statistics[1]);
    }
  });
  if (args.loss == nullptr) return;
  double loss = 0;
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.target[row] == kIgnored) continue;
    const double largest = args.statistics[2 * row], log_sum = args.statistics[2 * row + 1];
    loss += largest - ToFloat(args.logits[row * stride + args.target[row]]) + log_sum;
  }
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
  const float scale = args.scaling != nullptr ? args.scale * args.scaling->scale : args.scale;
  ParallelFor(args.rows, [&](int64_t row, int) {
    N* x = args.logits + row * stride;
    for (int64_t i = n; i < n + args.padding; ++i) x[i] = {};
    if (args.target[row] == kIgnored) {
      for (int64_t i = 0; i < n; ++i) x[i] = {};
      return;
    }
    const float largest = args.statistics[2 * row], log_sum = args.statistics[2 * row + 1];
    const auto part = [&](Vec logits) PP_LAMBDA { return Exp(logits - largest - log_sum) * scale; };
    // Rounded once: what remains of the target's 1 can be small.
    const int64_t target = args.target[row] - args.first;
    const bool here = 0 <= target && target < n;
    const Vec of_target = here ? part(Broadcast(ToFloat(x[target]))) - scale : Broadcast(0);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(x + i, part(Load(x + i)));
    if (i < n) StorePart(x + i, part(LoadPart(x + i, n - i)), n - i);
    if (here) StorePart(x + target, of_target, 1);
  });
}

PP_INSTANTIATE(CrossEntropyForward)
PP_INSTANTIATE(CrossEntropyPart)
PP_INSTANTIATE(CrossEntropyBackward)

}  // namespace pp::kernels::PP_ISA
