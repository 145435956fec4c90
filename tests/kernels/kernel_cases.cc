// The table of cases, what they share, and the cases for random numbers and sums of squares.
#include "tests/kernels/kernel_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace pp::kernels {

namespace {

// In tolerances.
double ErrorAt(const Comparison& c, size_t i) {
  const double error = std::abs(c.actual[i] - c.expected[i]);
  if (error == 0) return 0;
  return std::isnan(error) ? HUGE_VAL : error / c.tolerance[i];
}

}  // namespace

size_t WorstElement(const Comparison& c) {
  size_t worst = 0;
  for (size_t i = 1; i < c.expected.size(); ++i)
    if (ErrorAt(c, i) > ErrorAt(c, worst)) worst = i;
  return worst;
}

double WorstError(const Comparison& c) {
  return c.expected.empty() ? 0 : ErrorAt(c, WorstElement(c));
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double Mask(const DropoutKey& key, int64_t b, int64_t i) {
  if (key.p == 0) return 1;
  const uint32_t counter[4] = {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(i / 4 >> 32),
                               key.first_sequence + static_cast<uint32_t>(b), key.site};
  uint32_t words[4];
  Philox(key.seed, counter, words);
  return words[i % 4] >= key.p * 4294967296.0 ? 1 / (1.0 - key.p) : 0;
}

Floats Numbers(int64_t n, uint32_t seed) {
  Floats out(n);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& x : out) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31f;
  }
  return out;
}

void Philox(uint64_t key, const uint32_t (&counter)[4], uint32_t (&c)[4]) {
  uint32_t k[2] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
  std::memcpy(c, counter, sizeof(c));
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    const uint32_t next[4] = {
        static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
        static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    std::memcpy(c, next, sizeof(next));
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
}

Comparison RandomNormal(const CpuKernels& kernels) {
  Comparison result;
  for (const int64_t first : {0, 3, 1022}) {
    const int64_t n = 9001;
    const float std = 0.02f;
    Floats out(n);
    kernels.RandomNormal({out.data(), n, first, 42, 7, std});
    Doubles want(n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = first + i;
      const uint32_t counter[4] = {static_cast<uint32_t>(at / 4), 0, 7, 0xffffffff};
      uint32_t words[4];
      Philox(42, counter, words);
      const double u = (words[at % 4 / 2 * 2] + 0.5) * 0x1p-32;
      const double angle = 2 * M_PI * (words[at % 4 / 2 * 2 + 1] * 0x1p-32);
      const double normal =
          std::sqrt(-2 * std::log(u)) * (at % 2 ? std::sin(angle) : std::cos(angle));
      want[i] = std * normal;
    }
    result.Add(out, want, 8 * kEpsilon * std);
  }
  return result;
}

// In one call, with so many tensors that a GPU needs several launches.
Comparison SumSquares(const CpuKernels& kernels) {
  std::vector<int64_t> sizes = {1, 100, 0, kSumSquaresBlock, 2 * kSumSquaresBlock + 33};
  sizes.resize(300, 40);
  const Floats x = Numbers(2 * kSumSquaresBlock + 33, 1);
  std::vector<Doubles> partial(sizes.size());
  std::vector<SumSquaresTensor> tensors;
  for (size_t i = 0; i < sizes.size(); ++i) {
    partial[i].resize(SumSquaresBlocks(sizes[i]));
    tensors.push_back({sizes[i], x.data(), partial[i].data()});
  }
  kernels.SumSquares({tensors});
  Comparison result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Doubles want(partial[i].size());
    for (int64_t j = 0; j < sizes[i]; ++j) want[j / kSumSquaresBlock] += double(x[j]) * x[j];
    // Sums of doubles, kept as doubles: the error relative to the sum is below that of a float.
    for (size_t j = 0; j < want.size(); ++j)
      result.AddOne(static_cast<float>(partial[i][j] / want[j] - 1), 0, 1e-12);
  }
  return result;
}

namespace {

struct Row {
  const char* name;
  Comparison (*run)(const CpuKernels& kernels);
};

constexpr Row kCases[] = {
    {"embedding", Embedding},
    {"layer norm", LayerNorm},
    {"layer norm, the parts of its backward one by one", LayerNormInParts},
    {"RMS norm", RmsNorm},
    {"RMS norm of heads", HeadNorm},
    {"rotary embedding", Rope},
    {"attention", Attention},
    {"attention, first keys", AttentionFirstKeys},
    {"attention, tiles", AttentionTiles<float>},
    {"gelu", Gelu},
    {"exact gelu", GeluExact},
    {"gelu, far from 0", GeluFar},
    {"SwiGLU", SwiGlu},
    {"bias gradient", BiasGradient},
    {"dropout and residual", DropoutAndResidual},
    {"random normal", RandomNormal},
    {"cross entropy", CrossEntropy},
    {"cross entropy, ignored rows", CrossEntropyIgnored},
    {"cross entropy, in parts", CrossEntropyInParts},
    {"adamw", AdamW},
    {"sum of squares", SumSquares},
    {"clip", Clip},
    {"clip, of a scaled loss", ScaledLoss},
    {"fill, add, scale", Elementwise},
    {"sum of parts", SumParts},
    {"draw", Draw},
    {"embedding, many tokens", EmbeddingLarge},
    {"cross entropy, large vocabulary", CrossEntropyLarge},
    {"cross entropy, infinite and NaN", CrossEntropyInfinite},
    {"bfloat16: numbers", HalfNumbers<BFloat16>},
    {"bfloat16: attention", HalfAttention<BFloat16>},
    {"bfloat16: attention, first keys", HalfAttentionFirstKeys<BFloat16>},
    {"bfloat16: attention, tiles", AttentionTiles<BFloat16>},
    {"bfloat16: norms", HalfNorm<BFloat16>},
    {"bfloat16: elementwise", HalfElements<BFloat16>},
    {"bfloat16: embedding, bias, rotary embedding, cross entropy", HalfEnds<BFloat16>},
    {"float16: numbers", HalfNumbers<Float16>},
    {"float16: attention", HalfAttention<Float16>},
    {"float16: attention, first keys", HalfAttentionFirstKeys<Float16>},
    {"float16: attention, tiles", AttentionTiles<Float16>},
    {"float16: norms", HalfNorm<Float16>},
    {"float16: elementwise", HalfElements<Float16>},
    {"float16: embedding, bias, rotary embedding, cross entropy", HalfEnds<Float16>},
};

}  // namespace

std::span<const Case> KernelCases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases = MatmulCases();
    for (const Row& row : kCases) cases.push_back({row.name, row.run});
    for (const auto& halves : {HalfMatmulCases<BFloat16>(), HalfMatmulCases<Float16>()})
      cases.insert(cases.end(), halves.begin(), halves.end());
    return cases;
  }();
  return all;
}

}  // namespace pp::kernels
