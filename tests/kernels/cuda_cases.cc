// How a GPU rounds weights for products.
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/kernels/cuda_table.h"
#include "tests/kernels/half_numbers.h"

namespace pp::kernels {
namespace {

// After them there is a value that must not change.
constexpr uint16_t kBehind = 0x1234;

std::vector<uint16_t> Rounds(Rounding rounding, const Floats& x, int64_t first, int64_t n) {
  std::vector<uint16_t> y(n + 1, kBehind);
  cuda::Round({.n = n, .x = x.data() + first, .y = y.data(), .rounding = rounding}, nullptr);
  FinishKernel();
  return y;
}

// Of all sizes, in packs and next to them, and some that are not finite.
Floats Weights() {
  Floats x = Numbers(4099, 1);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::ldexp(1.0f, static_cast<int>(i % 80) - 50);
  x[7] = HUGE_VALF, x[8] = -HUGE_VALF, x[9] = std::nanf(""), x[10] = 0, x[11] = -0.0f;
  return x;
}

template <TwoBytes H>
void AddNearest(Comparison& result, Rounding rounding) {
  const Floats x = Weights();
  for (const int64_t first : {0, 1}) {
    const int64_t n = static_cast<int64_t>(x.size()) - first;
    std::vector<uint16_t> y = Rounds(rounding, x, first, n);
    result.AddOne(y.back(), kBehind, 0);
    for (int64_t i = 0; i < n; ++i) {
      H want;
      ToNearest(x[first + i], &want);
      const bool nan = std::isnan(x[first + i]) && std::isnan(NumberOf(H{y[i]}));
      result.AddOne(nan ? want.bits : y[i], want.bits, 0);
    }
  }
}

Comparison RoundNearest(const CpuKernels&) {
  Comparison result;
  AddNearest<BFloat16>(result, Rounding::kBFloat16);
  AddNearest<Float16>(result, Rounding::kFloat16);
  return result;
}

// What is not a BFloat16 becomes one of its two neighbours, the upper one with a probability given
// by its distance; what is one stays. The result does not depend on the position.
Comparison RoundStochastic(const CpuKernels&) {
  Comparison result;
  const Floats x = Weights();
  const auto n = static_cast<int64_t>(x.size());
  const std::vector<uint16_t> y = Rounds(Rounding::kStochasticBFloat16, x, 0, n);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t low = bits >> 16;
    const bool finite = std::isfinite(x[i]);
    const bool beside = y[i] == low || (finite && (bits & 0xffff) != 0 && y[i] == low + 1);
    result.AddOne(beside || std::isnan(x[i]) ? 1 : 0, 1, 0);
  }
  result.AddOne(std::isnan(NumberOf(BFloat16{y[9]})) ? 1 : 0, 1, 0);
  const std::vector<uint16_t> moved = Rounds(Rounding::kStochasticBFloat16, x, 1, n - 1);
  result.AddOne(std::equal(y.begin() + 1, y.end(), moved.begin()) ? 1 : 0, 1, 0);

  // Weights that are not rounded to the same side as their neighbours, of each eighth of the way
  // from one BFloat16 to the next: the expected share goes up, within five standard deviations.
  constexpr int kEach = 8192;
  Floats close(8 * kEach);
  for (int i = 0; i < 8 * kEach; ++i) close[i] = std::bit_cast<float>(0x3d420000u + i * 8u);
  const std::vector<uint16_t> sides =
      Rounds(Rounding::kStochasticBFloat16, close, 0, static_cast<int64_t>(close.size()));
  for (int part = 0; part < 8; ++part) {
    int up = 0, changes = 0;
    double want = 0, variance = 0;
    for (int i = part * kEach; i < (part + 1) * kEach; ++i) {
      const auto bits = std::bit_cast<uint32_t>(close[i]);
      const double p = (bits & 0xffff) / 65536.0;
      up += sides[i] != bits >> 16 ? 1 : 0;
      changes += i > 0 && (sides[i] != bits >> 16) != (sides[i - 1] != (bits - 8) >> 16) ? 1 : 0;
      want += p, variance += p * (1 - p);
    }
    result.AddOne(static_cast<float>(up), want, 5 * std::sqrt(variance));
    result.AddOne(static_cast<float>(changes), 2 * variance, 5 * std::sqrt(kEach));
  }
  return result;
}

// What AdamW writes next to the weights is what Round makes of them, updated or not.
Comparison AdamWRounded(const CpuKernels& kernels) {
  Comparison result;
  const int64_t sizes[] = {5000, 1003, 8};
  for (const Rounding rounding :
       {Rounding::kBFloat16, Rounding::kFloat16, Rounding::kStochasticBFloat16})
    for (const int finite : {0, 1}) {
      Floats w[3], m[3], v[3], gradient[3];
      std::vector<uint16_t> rounded[3];
      AdamWTensor tensors[3];
      for (int i = 0; i < 3; ++i) {
        const uint32_t seed = 10 * i;
        w[i] = Numbers(sizes[i], seed), gradient[i] = Numbers(sizes[i], seed + 1);
        m[i] = Numbers(sizes[i], seed + 2), v[i] = Floats(sizes[i], 0.5f);
        rounded[i].assign(sizes[i] + 1, kBehind);
        tensors[i] = {sizes[i],
                      w[i].data(),
                      m[i].data(),
                      v[i].data(),
                      gradient[i].data(),
                      0.1f,
                      i == 1 ? nullptr : rounded[i].data()};
      }
      const Clipped clipped = {.scale = 1, .finite = finite ? 1.0f : 0.0f};
      const Floats before = w[0];
      kernels.AdamW(
          {.tensors = tensors, .clipped = &clipped, .learning_rate = 1e-2f, .rounding = rounding});
      result.AddOne(SameBits(before, w[0]) ? 0 : 1, finite, 0);
      for (int i = 0; i < 3; ++i) {
        const std::vector<uint16_t> want = i == 1 ? std::vector<uint16_t>(sizes[i] + 1, kBehind)
                                                  : Rounds(rounding, w[i], 0, sizes[i]);
        result.AddOne(rounded[i] == want ? 1 : 0, 1, 0);
      }
    }
  return result;
}

const Case kCases[] = {
    {"rounded weights", RoundNearest},
    {"weights rounded stochastically", RoundStochastic},
    {"adamw that rounds", AdamWRounded},
};

}  // namespace

std::span<const Case> CudaCases() { return kCases; }

}  // namespace pp::kernels
