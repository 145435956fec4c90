// y = weights x as a GPU's matrix products take them, whose operands have one type, while weights
// and biases are fp32. (A CPU's products round their operands themselves.)
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace pp::kernels {

// To which type, and to which of its two values next to x.
enum class Rounding {
  kNone,
  kBFloat16,  // the nearest, as in numbers.h
  kFloat16,
  // Stochastic rounding (Gupta et al., "Deep Learning with Limited Numerical Precision", 2015):
  // each of the two with a probability such that their mean is x. The draw is a hash of x's own
  // bits, so that a weight is rounded in the same way in every layout, replica and version, and
  // after a restart; it changes when the weight does.
  kStochasticBFloat16,
};

struct RoundArgs {
  int64_t n = 0;
  const float* x = nullptr;  // [n]
  void* y = nullptr;         // [n] of `rounding`'s type, =
  Rounding rounding = Rounding::kNone;
};

namespace cuda {

// REQUIRES: not kNone.
void Round(const RoundArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
