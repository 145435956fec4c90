#include "kernels/column_sums.h"
#include "kernels/isa.h"
#include "kernels/parallel.h"
#include "kernels/simd.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t kRows = 16;  // that a thread takes at once

// sum over c < n of term(c, lanes), in four strands of vectors. Lanes beyond n are not to count.
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

void ForwardRow(const LayerNormForwardArgs& args, int64_t row) {
  const int64_t n = args.channels;
  const float* x = args.x + row * n;
  float* y = args.y + row * n;
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
  if (!centered) {
    for (int64_t c = 0; c < n; ++c) y[c] = x[c] * rstd * args.gamma[c];
    return;
  }
  for (int64_t c = 0; c < n; ++c) y[c] = (x[c] - mean) * rstd * args.gamma[c] + args.beta[c];
  args.mean[row] = mean;
}

// The product, rounded: the compiler must not fuse it with a sum. With one channel g - sum(g)/1 is
// 0, where a fused product would leave its rounding error, times rstd, which may be large.
PP_INLINE Vec Rounded(Vec v) {
  asm("" : "+v"(v));
  return v;
}

template <Update kUpdate>
void BackwardRow(const LayerNormBackwardArgs& args, int64_t row) {
  const int64_t n = args.channels;
  const float* x = args.x + row * n;
  const float* dy = args.dy + row * n;
  float* dx = args.dx + row * n;
  const bool centered = args.mean != nullptr;
  const float mean = centered ? args.mean[row] : 0, rstd = args.rstd[row];
  const auto g = [&](int64_t c, int64_t k) PP_LAMBDA {
    return Rounded(LoadUpTo(dy + c, k) * LoadUpTo(args.gamma + c, k));
  };
  const auto normal = [&](int64_t c, int64_t k)
                          PP_LAMBDA { return (LoadUpTo(x + c, k) - mean) * rstd; };
  const float g_mean = centered ? SumOver(n, g) / n : 0;
  const float gn_mean =
      SumOver(n, [&](int64_t c, int64_t k) PP_LAMBDA { return g(c, k) * normal(c, k); }) / n;
  const auto put = [&](int64_t c, int64_t k) PP_LAMBDA {
    const Vec d = rstd * (g(c, k) - g_mean - normal(c, k) * gn_mean);
    const Vec sum = kUpdate == Update::kSet ? d : LoadUpTo(dx + c, k) + d;
    StoreUpTo(dx + c, sum, k);
  };
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) put(c, kLanes);
  if (c < n) put(c, n - c);
}

void ParameterGradients(const LayerNormBackwardArgs& args) {
  ParallelRanges(args.channels, kColumnRange, [&](int64_t begin, int64_t end) {
    float gamma[kColumnRange] = {}, beta[kColumnRange] = {};
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* x = args.x + r * args.channels + begin;
      const float* dy = args.dy + r * args.channels + begin;
      const float mean = args.mean != nullptr ? args.mean[r] : 0, rstd = args.rstd[r];
      for (int64_t c = 0; c < end - begin; ++c) {
        gamma[c] += dy[c] * ((x[c] - mean) * rstd);
        beta[c] += dy[c];
      }
    }
    StoreColumns(gamma, end - begin, args.update, args.dgamma + begin);
    if (args.dbeta != nullptr) StoreColumns(beta, end - begin, args.update, args.dbeta + begin);
  });
}

}  // namespace

void LayerNormForward(const LayerNormForwardArgs& args) {
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) ForwardRow(args, row);
  });
}

void LayerNormBackward(const LayerNormBackwardArgs& args) {
  if (args.dgamma != nullptr) ParameterGradients(args);
  if (args.dx == nullptr) return;
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      if (args.dx_update == Update::kSet) {
        BackwardRow<Update::kSet>(args, row);
      } else {
        BackwardRow<Update::kAdd>(args, row);
      }
    }
  });
}

}  // namespace pp::kernels::PP_ISA
