#include "runtime/compare/fingerprint.h"

#include <algorithm>
#include <cmath>

#include "runtime/device/activations.h"

namespace pp {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Hash(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

void Fingerprint::Add(const float* x, int64_t first, int64_t n) {
  static_assert(kSums == 8);  // a byte of the hash has the signs of one number, of 8 in a row
  numbers += n;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<uint64_t>(first + i);
    const uint64_t signs = Hash(at / 8) >> at % 8 * 8;
    const double number = x[i];
    squares += number * number;
    for (int j = 0; j < kSums; ++j) sums[j] += (signs >> j & 1) != 0 ? number : -number;
  }
}

void Fingerprint::Add(const std::byte* x, Dtype dtype, int64_t first, int64_t n) {
  ForActivations(dtype, [&]<typename N>() {
    const auto* numbers = reinterpret_cast<const N*>(x);
    if constexpr (kernels::TwoBytes<N>) {
      float floats[256];
      for (int64_t done = 0; done < n; done += std::size(floats)) {
        const int64_t count = std::min<int64_t>(std::size(floats), n - done);
        for (int64_t i = 0; i < count; ++i) floats[i] = kernels::Widened(numbers[done + i]);
        Add(floats, first + done, count);
      }
    } else {
      Add(numbers, first, n);
    }
  });
}

void Fingerprint::Add(const Fingerprint& other) {
  numbers += other.numbers;
  squares += other.squares;
  for (int j = 0; j < kSums; ++j) sums[j] += other.sums[j];
}

double Distance(const Fingerprint& a, const Fingerprint& b) {
  double squares = 0;
  for (int j = 0; j < Fingerprint::kSums; ++j)
    squares += (a.sums[j] - b.sums[j]) * (a.sums[j] - b.sums[j]);
  return std::sqrt(squares / Fingerprint::kSums);
}

}  // namespace pp
