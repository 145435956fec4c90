#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/head_norm.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {

constexpr int64_t kRows = 16;  // that a thread takes together

// Lanes beyond what is left of a head are 0.
template <typename N>
float NormHead(const N* x, const float* gamma, int64_t n, float epsilon, N* y) {
  Vec squares = Broadcast(0);
  for (int64_t c = 0; c < n; c += kLanes) {
    const Vec v = LoadUpTo(x + c, n - c);
    squares += v * v;
  }
  const float rstd = 1 / __builtin_sqrtf(Sum(squares) / static_cast<float>(n) + epsilon);
  for (int64_t c = 0; c < n; c += kLanes)
    StoreUpTo(y + c, LoadUpTo(x + c, n - c) * rstd * LoadUpTo(gamma + c, n - c), n - c);
  return rstd;
}

template <typename N>
void NormHeadBackward(const N* x, const float* gamma, int64_t n, float rstd, N* d) {
  Vec sum = Broadcast(0);
  for (int64_t c = 0; c < n; c += kLanes)
    sum += LoadUpTo(d + c, n - c) * LoadUpTo(gamma + c, n - c) * (LoadUpTo(x + c, n - c) * rstd);
  const float mean = Sum(sum) / static_cast<float>(n);
  for (int64_t c = 0; c < n; c += kLanes) {
    const Vec g = LoadUpTo(d + c, n - c) * LoadUpTo(gamma + c, n - c);
    StoreUpTo(d + c, rstd * (g - LoadUpTo(x + c, n - c) * rstd * mean), n - c);
  }
}

// Heads [first, first + heads) of all rows share a gamma.
template <typename N>
void GammaGradient(const HeadNormBackwardArgs<N>& args, int64_t first, int64_t heads,
                   float* dgamma) {
  const int64_t all = args.heads + args.kv_heads, stride = (all + args.kv_heads) * args.head_dim;
  ParallelRanges(args.head_dim, kColumnRange, [&](int64_t begin, int64_t end) {
    float sums[kColumnRange] = {};
    for (int64_t row = 0; row < args.rows; ++row) {
      for (int64_t head = first; head < first + heads; ++head) {
        const int64_t at = row * stride + head * args.head_dim + begin;
        const float rstd = args.rstd[row * all + head];
        for (int64_t c = 0; c < end - begin; c += kLanes) {
          const int64_t n = end - begin - c;
          Store(sums + c, Load(sums + c) +
                              LoadUpTo(args.d + at + c, n) * (LoadUpTo(args.x + at + c, n) * rstd));
        }
      }
    }
    StoreColumns(sums, end - begin, Update::kSet, dgamma + begin);
  });
}

}  // namespace

template <typename N>
void HeadNormForward(const HeadNormForwardArgs<N>& args) {
  const int64_t n = args.head_dim, normed = args.heads + args.kv_heads;
  const int64_t stride = (normed + args.kv_heads) * n;
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row) {
      const N* x = args.x + row * stride;
      N* y = args.y + row * stride;
      for (int64_t head = 0; head < normed; ++head)
        args.rstd[row * normed + head] =
            NormHead(x + head * n, head < args.heads ? args.q_gamma : args.k_gamma, n, args.epsilon,
                     y + head * n);
      for (int64_t c = normed * n; c < stride; ++c) y[c] = x[c];
    }
  });
}

template <typename N>
void HeadNormBackward(const HeadNormBackwardArgs<N>& args) {
  const int64_t n = args.head_dim, normed = args.heads + args.kv_heads;
  const int64_t stride = (normed + args.kv_heads) * n;
  GammaGradient(args, 0, args.heads, args.dgamma);
  GammaGradient(args, args.heads, args.kv_heads, args.dgamma + n);
  ParallelRanges(args.rows, kRows, [&](int64_t row, int64_t end) {
    for (; row < end; ++row)
      for (int64_t head = 0; head < normed; ++head)
        NormHeadBackward(args.x + row * stride + head * n,
                         head < args.heads ? args.q_gamma : args.k_gamma, n,
                         args.rstd[row * normed + head], args.d + row * stride + head * n);
  });
}

PP_INSTANTIATE(HeadNormForward)
PP_INSTANTIATE(HeadNormBackward)

}  // namespace pp::kernels::PP_ISA
