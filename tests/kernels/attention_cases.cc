// The attention kernel's cases: against T x T matrices in doubles.
#include <cmath>

#include "tests/kernels/first_key_lists.h"
#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {
namespace {

// The position of query (0), key (1) or value (2) of head h of the queries in packed rows.
struct PackedRows {
  AttentionShape s;
  int64_t kv_heads = s.kv_heads == 0 ? s.heads : s.kv_heads;
  int64_t width = (s.heads + 2 * kv_heads) * s.head_dim;

  int64_t operator()(int part, int64_t b, int64_t t, int64_t h, int64_t d) const {
    const int64_t kv = h / (s.heads / kv_heads);
    const int64_t head[] = {h, s.heads + kv, s.heads + kv_heads + kv};
    return (b * s.tokens + t) * width + head[part] * s.head_dim + d;
  }
};

// Attention of one head, with T x T matrices.
struct PlainHead {
  int64_t tokens, dim;
  Doubles p, mask;  // [tokens, tokens]

  PlainHead(const AttentionShape& s, const Floats& qkv, const DropoutKey& key,
            const FirstKeyList& first, int64_t b, int64_t h)
      : tokens(s.tokens), dim(s.head_dim), p(tokens * tokens), mask(tokens * tokens) {
    const PackedRows at = {s};
    for (int64_t i = 0; i < tokens; ++i) {
      double sum = 0;
      for (int64_t j = first.Of(b, i); j <= i; ++j) {
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) {
          score += static_cast<double>(qkv[at(0, b, i, h, d)]) * qkv[at(1, b, j, h, d)];
        }
        sum += p[i * tokens + j] = std::exp(score / std::sqrt(double(dim)));
        mask[i * tokens + j] = Mask(key, b, ((s.first_head + h) * tokens + i) * tokens + j);
      }
      for (int64_t j = 0; j <= i; ++j) p[i * tokens + j] /= sum;
    }
  }
};

// All that the kernels compute. Scores have errors of eps*sqrt(D) of values of order 1, and so,
// relatively, have probabilities.
void AddAttention(Comparison& result, const CpuKernels& kernels, const AttentionShape& s,
                  const DropoutKey& key, const FirstKeyList& first) {
  const int64_t c = s.heads * s.head_dim, rows = s.batch * s.tokens;
  const PackedRows place = {s};
  const Floats qkv = Numbers(rows * place.width, 1), dout = Numbers(rows * c, 2);
  Floats out(rows * c), lse(s.batch * s.heads * s.tokens), dqkv(qkv.size(), std::nanf(""));
  Scratch scratch(cpu::AttentionScratchBytes<float>(s));
  kernels.AttentionForward(
      {s, qkv.data(), out.data(), lse.data(), key, first.keys(), scratch.get(), scratch.helpers()});
  kernels.AttentionBackward({s, qkv.data(), out.data(), lse.data(), dout.data(), dqkv.data(), key,
                             first.keys(), scratch.get(), scratch.helpers()});
  Doubles want(out.size()), want_d(dqkv.size());
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const PlainHead head(s, qkv, key, first, b, h);
      const auto in = [&](int part, int64_t t, int64_t d) { return place(part, b, t, h, d); };
      const auto at = [&](int64_t t, int64_t d) {
        return (b * s.tokens + t) * c + h * s.head_dim + d;
      };
      for (int64_t i = 0; i < s.tokens; ++i) {
        const double* p = &head.p[i * s.tokens];
        const double* mask = &head.mask[i * s.tokens];
        double dot = 0;
        for (int64_t d = 0; d < s.head_dim; ++d) {
          for (int64_t j = first.Of(b, i); j <= i; ++j)
            want[at(i, d)] += p[j] * mask[j] * qkv[in(2, j, d)];
          dot += want[at(i, d)] * dout[at(i, d)];
        }
        for (int64_t j = first.Of(b, i); j <= i; ++j) {
          double dp = 0;
          for (int64_t d = 0; d < s.head_dim; ++d) dp += double(dout[at(i, d)]) * qkv[in(2, j, d)];
          const double ds = p[j] * (dp * mask[j] - dot) / std::sqrt(double(s.head_dim));
          for (int64_t d = 0; d < s.head_dim; ++d) {
            want_d[in(0, i, d)] += ds * qkv[in(1, j, d)];
            want_d[in(1, j, d)] += ds * qkv[in(0, i, d)];
            want_d[in(2, j, d)] += p[j] * mask[j] * dout[at(i, d)];
          }
        }
      }
    }
  }
  result.Add(out, want, 8 * kEpsilon * std::sqrt(s.head_dim));
  const int64_t terms = s.tokens * (s.heads / place.kv_heads);
  result.Add(dqkv, want_d, 16 * kEpsilon * std::sqrt(s.head_dim + terms));
}

}  // namespace

Comparison Attention(const CpuKernels& kernels) {
  Comparison result;
  constexpr AttentionShape kShapes[] = {{1, 1, 1, 1},      {2, 7, 2, 5},        {1, 64, 2, 64},
                                        {1, 130, 1, 64},   {2, 49, 3, 33},      {1, 97, 1, 100},
                                        {1, 1100, 1, 5},   {1, 520, 2, 40},     {2, 49, 6, 33, 2},
                                        {1, 600, 4, 8, 1}, {1, 33, 2, 8, 1, 3}, {1, 132, 2, 128, 1},
                                        {1, 70, 1, 200},   {1, 37, 1, 255}};
  for (const AttentionShape& s : kShapes)
    for (const DropoutKey& key : kDropouts) AddAttention(result, kernels, s, key, {});
  return result;
}

// Heads of each width that has its own kernel, or shared keys, with some lists each; and sequences
// of several blocks of keys, of which a query sees one, two or all three.
Comparison AttentionFirstKeys(const CpuKernels& kernels) {
  Comparison result;
  constexpr AttentionShape kShapes[] = {{2, 150, 2, 8, 1}, {1, 141, 1, 64}, {1, 133, 1, 33},
                                        {1, 100, 1, 80},   {1, 98, 1, 95},  {1, 137, 2, 128, 1},
                                        {1, 70, 1, 200}};
  for (const AttentionShape& s : kShapes) {
    size_t number = 0;
    for (const FirstKeyList& first : FirstKeyLists(s))
      if (s.head_dim == 8 || number++ % 3 == static_cast<size_t>(s.tokens) % 3)
        for (const DropoutKey& key : kDropouts) AddAttention(result, kernels, s, key, first);
  }
  constexpr AttentionShape kLong = {1, 1100, 1, 5};
  for (const int64_t most : {1, 40, 512, 513, 1000})
    AddAttention(result, kernels, kLong, kDropouts[most % 2], WindowOf(kLong.tokens, most));
  AddAttention(result, kernels, kLong, kDropouts[1], DocumentsAt(kLong.tokens, {0, 3, 512, 1030}));
  AddAttention(result, kernels, kLong, kDropouts[1], DocumentsAt(kLong.tokens, {0, 500, 530, 600}));
  AddAttention(result, kernels, kLong, kDropouts[0], RandomList(kLong, false));
  return result;
}

}  // namespace pp::kernels
