#include "runtime/record/fingerprint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

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

// A byte of the hash holds the signs of one element, of 8 in a row.
static_assert(Fingerprint::kSums == 8);
typedef double Sums __attribute__((vector_size(8 * sizeof(double))));

// 1 where a byte has a 1, else -1.
const std::array<Sums, 256> kSigns = [] {
  std::array<Sums, 256> signs;
  for (int byte = 0; byte < 256; ++byte)
    for (int j = 0; j < 8; ++j) signs[byte][j] = (byte >> j & 1) != 0 ? 1 : -1;
  return signs;
}();

}  // namespace

void Fingerprint::Add(const float* x, int64_t first, int64_t n) {
  numbers += n;
  Sums added;
  std::memcpy(&added, sums, sizeof(added));
  uint64_t signs = Hash(static_cast<uint64_t>(first) / 8) >> first % 8 * 8;
  for (int64_t i = 0; i < n; ++i, signs >>= 8) {
    const auto at = static_cast<uint64_t>(first + i);
    if (at % 8 == 0) signs = Hash(at / 8);
    const double number = x[i];
    squares += number * number;
    added += kSigns[signs & 0xff] * number;
  }
  std::memcpy(sums, &added, sizeof(added));
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
