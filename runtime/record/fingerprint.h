// A few sums that tell values of any length apart, and can be added from parts.
//
// Sums of a value's elements under signs that depend on each element's position in the whole value
// (Alon, Matias and Szegedy, "The space complexity of approximating the frequency moments", 1996):
// the mean square of the differences between two values' sums estimates the sum of squares of the
// differences between their elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "schema/model/dtype.h"

namespace pp {

struct Fingerprint {
  static constexpr int kSums = 8;

  int64_t numbers = 0;
  double squares = 0;
  double sums[kSums] = {};

  // Adds the elements [first, first + n) of the value.
  void Add(const float* x, int64_t first, int64_t n);
  void Add(const std::byte* x, Dtype dtype, int64_t first, int64_t n);
  // Adds other elements of the same value.
  void Add(const Fingerprint& other);
};

// An estimate of the root of the sum of squares of the differences.
double Distance(const Fingerprint& a, const Fingerprint& b);

}  // namespace pp
