// A shuffled order of the sequences of a pass, computed where it is needed and stored nowhere: the
// same on every machine, for every number of ranks, and after a restart.
//
// It is a Feistel network on the numbers of just as many bits as are needed, with the halves of
// such a number taking turns: each round adds to one half a function of the other one, which can be
// undone, so that no two numbers become the same. A result beyond the size goes through the network
// again until it is in range ("cycle walking", Black and Rogaway, Ciphers with Arbitrary Finite
// Domains, 2002), which stays a permutation, and takes less than two rounds through it on average.
#pragma once

#include <array>
#include <cstdint>

namespace pp {

class Permutation {
 public:
  // Of [0, size); another one for each seed and each pass. REQUIRES: size >= 1.
  Permutation(uint64_t seed, int64_t pass, int64_t size);

  // Which number comes at place i. REQUIRES: 0 <= i < size.
  int64_t At(int64_t i) const;

 private:
  // With 10, some orders of 5 or 6 numbers come 2 % more often than others; of more numbers, fewer
  // would do.
  static constexpr int kRounds = 32;

  std::array<uint64_t, kRounds> keys_;
  uint64_t size_;
  int low_bits_ = 0;  // of a number; the others are as many, or one more
  uint64_t low_mask_ = 0, high_mask_ = 0;
};

}  // namespace pp
