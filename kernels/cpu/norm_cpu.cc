#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t kRows = 16;  // that a thread takes together

// sum over c < n of term(c, lanes), in four independent vector sums. Lanes beyond n must not count.
template <typename Term>
PP_INLINE float SumOver(int64_t n, const Term& term) {
  Vec sum[4] = {Broadcast(0), Broadcast(0), Broadcast(0), Broadcast(0)};
  int64_t c = 0;
  for (; c + 4 * kLanes <= n; c += 4 * kLanes) {
    for (int i = 0; i < 4; ++i) sum[i] += term(c + i * kLanes, kLanes);
  }
  for (; c + kLanes <= n; c += kLanes) sum[0] += term(c, kLanes);
  if (c < n) {
    float last[kLanes] = {};
    StorePart(last, term(c, n - c), n - c);
    sum[1] += Load(last);
  }
  return Sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <typename N>
void ForwardRow(const LayerNormForwardArgs<N>& args, int64_t row) {
  const int64_t n = args.channels;
  const N* x = args.x + row * n;
  N* y = args.y + row * n;
  const bool centered = args.mean != nullptr;
  const float mean =
      centered ? SumOver(n, [&](int64_t c, int64_t k) PP_LAMBDA { return LoadUpTo(x + c, k); }) / n
               : 0;
  const float variance = SumOver(n,
                                 [&](int64_t c, int64_t k) PP_LAMBDA {
                                   const Vec d = LoadUpTo(x + c, k) - mean;
                                   return d * d;
                                 }) /
                         n;
  const float rstd = 1 / __builtin_sqrtf(variance + args.epsilon);
  args.rstd[row] = rstd;
  for (int64_t c = 0; c < n; c += kLanes) {
    const Vec normal = (LoadUpTo(x + c, n - c) - mean) * rstd;
    const Vec scaled = normal * LoadUpTo(args.gamma + c, n - c);
    StoreUpTo(y + c, centered ? scaled + LoadUpTo(args.beta + c, n - c) : scaled, n - c);
  }
  if (centered) args.mean[row] = mean;
}

// The product, rounded: the compiler must not fuse it with a sum. With one channel g - sum(g)/1 is
// 0, but a fused product would leave its rounding error, times rstd, which may be large.
PP_INLINE Vec Unfused(Vec v) {
  asm("" : "+v"(v));
  return v;
}

enum class Adds { kNo, kYes };
template <Adds kAdds, typename N>
void BackwardRow(const LayerNormBackwardArgs<N>& args, int64_t row) {
  const int64_t n = args.channels;
  const N* x = args.x + row * n;
  const N* dy = args.dy + row * n;
  const N* add = kAdds == Adds::kYes ? args.add + row * n : nullptr;
  N* dx = args.dx + row * n;
  const bool centered = args.mean != nullptr;
  const float mean = centered ? args.mean[row] : 0, rstd = args.rstd[row];
  const auto g = [&](int64_t c, int64_t k) PP_LAMBDA {
    return Unfused(LoadUpTo(dy + c, k) * LoadUpTo(args.gamma + c, k));
  };
  const auto normal = [&](int64_t c, int64_t k)
                          PP_LAMBDA { return (LoadUpTo(x + c, k) - mean) * rstd; };
  const float g_mean = centered ? SumOver(n, g) / n : 0;
  const float gn_mean =
      SumOver(n, [&](int64_t c, int64_t k) PP_LAMBDA { return g(c, k) * normal(c, k); }) / n;
  const auto put = [&](int64_t c, int64_t k) PP_LAMBDA {
    const Vec d = rstd * (g(c, k) - g_mean - normal(c, k) * gn_mean);
    StoreUpTo(dx + c, kAdds == Adds::kNo ? d : LoadUpTo(add + c, k) + d, k);
  };
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) put(c, kLanes);
  if (c < n) put(c, n - c);
}

template <typename N>
void ParameterGradients(const LayerNormBackwardArgs<N>& args) {
  ParallelRanges(args.channels, kColumnRange, [&](int64_t begin, int64_t end) {
    float gamma[kColumnRange] = {}, beta[kColumnRange] = {};
    for (int64_t r = 0; r < args.rows; ++r) {
      const N* x = args.x + r * args.channels + begin;
      const N* dy = args.dy + r * args.channels + begin;
      const float mean = args.mean != nullptr ? args.mean[r] : 0, rstd = args.rstd[r];
      for (int64_t c = 0; c < end - begin; c += kLanes) {
        const int64_t n = end - begin - c;
        const Vec d = LoadUpTo(dy + c, n);
        Store(gamma + c, Load(gamma + c) + d * ((LoadUpTo(x + c, n) - mean) * rstd));
        Store(beta + c, Load(beta + c) + d);
      }
    }
    StoreColumns(gamma, end - begin, args.update, args.dgamma + begin);
    if (args.dbeta != nullptr) StoreColumns(beta, end - begin, args.update, args.dbeta + begin);
  });
}

}  // namespace

template <typename N>
void LayerNormForward(const LayerNormForwardArgs<N>& args) {
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) ForwardRow(args, row);
  });
}

template <typename N>
void LayerNormBackward(const LayerNormBackwardArgs<N>& args) {
  if (args.dgamma != nullptr) ParameterGradients(args);
  if (args.dx == nullptr) return;
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      args.add == nullptr ? BackwardRow<Adds::kNo>(args, row) : BackwardRow<Adds::kYes>(args, row);
    }
  });
}

PP_INSTANTIATE(LayerNormForward)
PP_INSTANTIATE(LayerNormBackward)

}  // namespace pp::kernels::PP_ISA
