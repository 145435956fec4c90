// The table of kernels that kernels_test.cc runs: each beside a plain version in doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/isa.h"

namespace pp::kernels {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

// Numbers in [-1, 1), the same in every run.
Floats Numbers(int64_t n, uint32_t seed);

// Philox4x32-10, straight from the paper.
void Philox(uint64_t key, const uint32_t (&counter)[4], uint32_t (&c)[4]);

// What a kernel computed beside what it should have. Errors of the order of `tolerance` are those
// of rounding: adding K numbers of order 1 and random signs makes K errors, each of eps times a
// partial sum of order sqrt(K), and these, too, have random signs: together eps * sqrt(K) *
// sqrt(K).
struct Comparison {
  Floats actual;
  Doubles expected;
  Doubles tolerance;

  void Add(const Floats& got, const Doubles& want, double allowed) {
    actual.insert(actual.end(), got.begin(), got.end());
    expected.insert(expected.end(), want.begin(), want.end());
    tolerance.insert(tolerance.end(), want.size(), allowed);
  }
};

// Memory aligned for scratch.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : bytes_(bytes + 64) {}
  void* get() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    return reinterpret_cast<void*>((at + 63) / 64 * 64);
  }

 private:
  std::vector<char> bytes_;
};

struct Case {
  const char* name;
  Comparison (*run)(const CpuKernels& kernels);
};

std::span<const Case> KernelCases();

// Two of them by name.
Comparison RandomNormal(const CpuKernels& kernels);
Comparison SumSquares(const CpuKernels& kernels);

}  // namespace pp::kernels
