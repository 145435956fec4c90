// Small changes to whole programs, so that the fuzzers get past the reader and deep into the
// verifier: most changes keep a program readable and make it wrong in one place.
#pragma once

#include <cstdint>
#include <string>

#include "schema/program.h"

namespace pp {

// SplitMix64 (Steele et al., 2014): the same sequence on every machine, and cheap to set up,
// because every mutation makes its own generator.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed) {}
  // 0 .. count-1. REQUIRES: count > 0.
  int Below(size_t count) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int>((z ^ (z >> 31)) % count);
  }
  bool OneIn(int count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

// A right program of a random shape, small enough for thousands of runs a second.
Program AnyProgram(Random& random);

// Changes one thing.
void Mutate(Random& random, Program* program);

// Changes one line or word. REQUIRES: nothing; any text.
void Mutate(Random& random, std::string* text);

}  // namespace pp
