#include "runtime/files/permutation.h"

#include <bit>

#include "schema/base/status.h"

namespace pp {
namespace {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

}  // namespace

Permutation::Permutation(uint64_t seed, int64_t pass, int64_t size)
    : size_(static_cast<uint64_t>(size)) {
  PP_CHECK(size >= 1 && pass >= 0);
  uint64_t state = Mix(Mix(seed + kGolden) + kGolden * (static_cast<uint64_t>(pass) + 1));
  for (uint64_t& key : keys_) key = Mix(state += kGolden);
  const int bits = std::bit_width(size_ - 1);
  low_bits_ = bits / 2;
  low_mask_ = (uint64_t{1} << low_bits_) - 1;
  high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
}

int64_t Permutation::At(int64_t i) const {
  auto number = static_cast<uint64_t>(i);
  do {
    uint64_t low = number & low_mask_, high = number >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      high ^= Mix(low ^ keys_[round]) & high_mask_;
      low ^= Mix(high ^ keys_[round + 1]) & low_mask_;
    }
    number = high << low_bits_ | low;
  } while (number >= size_);
  return static_cast<int64_t>(number);
}

}  // namespace pp
