// Small changes to whole programs, so that the fuzzers get past the reader and deep into the
// verifier: most changes keep a program readable and make it wrong in one place.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "schema/program.h"

namespace pp {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  // 0 .. count-1. REQUIRES: count > 0. The same on every machine.
  int Below(size_t count) { return static_cast<int>(engine_() % count); }
  bool OneIn(int count) { return Below(count) == 0; }

 private:
  std::mt19937 engine_;
};

// A right program of a random shape, small enough for thousands of runs a second.
Program AnyProgram(Random& random);

// Changes one thing.
void Mutate(Random& random, Program* program);

// Changes one line or word. REQUIRES: nothing; any text.
void Mutate(Random& random, std::string* text);

}  // namespace pp
