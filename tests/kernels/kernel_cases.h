// The table of kernels that kernels_test.cc runs: each against a plain version in doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/isa.h"
#include "kernels/threads.h"
#include "schema/base/status.h"

namespace pp::kernels {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Numbers in [-1, 1), the same in every run.
Floats Numbers(int64_t n, uint32_t seed);

// Philox4x32-10, straight from the paper.
void Philox(uint64_t key, const uint32_t (&counter)[4], uint32_t (&c)[4]);

// What a kernel computed next to what it should have. Errors of the order of `tolerance` are those
// of rounding: adding K values of order 1 and random signs makes K errors, each of eps times a
// partial sum of order sqrt(K), and these, too, have random signs: together eps * sqrt(K) *
// sqrt(K).
struct Comparison {
  Floats actual;
  Doubles expected;
  Doubles tolerance;

  void Add(const Floats& got, const Doubles& want, double allowed) {
    PP_CHECK(got.size() == want.size());
    actual.insert(actual.end(), got.begin(), got.end());
    expected.insert(expected.end(), want.begin(), want.end());
    tolerance.insert(tolerance.end(), want.size(), allowed);
  }
  void AddOne(float got, double want, double allowed) {
    actual.push_back(got);
    expected.push_back(want);
    tolerance.push_back(allowed);
  }
};

// How much larger than its tolerance the worst error is. Not above 1 when all is well.
double WorstError(const Comparison& c);
size_t WorstElement(const Comparison& c);
bool SameBits(const Floats& a, const Floats& b);

// Aligned scratch of a thread, and of its helpers. It begins as NaNs.
class Scratch {
 public:
  explicit Scratch(size_t bytes)
      : own_(bytes + 64, '\xff'), helpers_((threads() - 1) * bytes + 64, '\xff') {}
  void* get() { return Aligned(own_); }
  void* helpers() { return Aligned(helpers_); }

 private:
  static size_t threads() { return Threads(); }
  static void* Aligned(std::vector<char>& bytes) {
    const auto at = reinterpret_cast<uintptr_t>(bytes.data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }

  std::vector<char> own_, helpers_;
};

inline constexpr double kEpsilon = std::numeric_limits<float>::epsilon();

// What dropout multiplies element i of row b by: 0 or 1/(1-p).
double Mask(const DropoutKey& key, int64_t b, int64_t i);

inline constexpr DropoutKey kDropouts[] = {
    {}, {.seed = 0x123456789abcdef0, .site = 17, .first_sequence = 5, .p = 0.25f}};

struct Case {
  std::string name;
  std::function<Comparison(const CpuKernels& kernels)> run;
};

std::span<const Case> KernelCases();

// In attention_cases.cc.
Comparison Attention(const CpuKernels& kernels);
Comparison AttentionFirstKeys(const CpuKernels& kernels);

// In attention_tiles_cases.cc. N: the type of activations.
template <typename N>
Comparison AttentionTiles(const CpuKernels& kernels);

// In cross_entropy_cases.cc.
Comparison CrossEntropy(const CpuKernels& kernels);
Comparison CrossEntropyIgnored(const CpuKernels& kernels);
Comparison CrossEntropyInParts(const CpuKernels& kernels);

// In element_cases.cc.
Comparison AdamW(const CpuKernels& kernels);
Comparison DropoutAndResidual(const CpuKernels& kernels);
Comparison Elementwise(const CpuKernels& kernels);
Comparison Gelu(const CpuKernels& kernels);
Comparison GeluExact(const CpuKernels& kernels);
Comparison GeluFar(const CpuKernels& kernels);
Comparison SwiGlu(const CpuKernels& kernels);

// In large_cases.cc.
Comparison Clip(const CpuKernels& kernels);
Comparison ScaledLoss(const CpuKernels& kernels);
Comparison CrossEntropyInfinite(const CpuKernels& kernels);
Comparison CrossEntropyLarge(const CpuKernels& kernels);
Comparison Draw(const CpuKernels& kernels);
Comparison EmbeddingLarge(const CpuKernels& kernels);
Comparison SumParts(const CpuKernels& kernels);

// In matmul_cases.cc and half_product_cases.cc: a case for each size of a product. "matmul" is in
// all of their names.
std::vector<Case> MatmulCases();
template <TwoBytes H>
std::vector<Case> HalfMatmulCases();
struct ProductSize {
  int64_t m, n, k;
  std::string Text() const;  // as 16x32x64
};

// In row_cases.cc.
Comparison BiasGradient(const CpuKernels& kernels);
Comparison Embedding(const CpuKernels& kernels);
Comparison HeadNorm(const CpuKernels& kernels);
Comparison LayerNorm(const CpuKernels& kernels);
Comparison LayerNormInParts(const CpuKernels& kernels);
Comparison RmsNorm(const CpuKernels& kernels);
Comparison Rope(const CpuKernels& kernels);

// For both types of two bytes, in half_cases.cc and half_product_cases.cc.
template <TwoBytes H>
Comparison HalfNumbers(const CpuKernels& kernels);
template <TwoBytes H>
Comparison HalfAttention(const CpuKernels& kernels);
template <TwoBytes H>
Comparison HalfAttentionFirstKeys(const CpuKernels& kernels);
template <TwoBytes H>
Comparison HalfNorm(const CpuKernels& kernels);
template <TwoBytes H>
Comparison HalfElements(const CpuKernels& kernels);
template <TwoBytes H>
Comparison HalfEnds(const CpuKernels& kernels);

// In kernel_cases.cc.
Comparison RandomNormal(const CpuKernels& kernels);
Comparison SumSquares(const CpuKernels& kernels);

}  // namespace pp::kernels
