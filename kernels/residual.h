// out = x + dropout(y). The backward is dx = dout and, for dy, Dropout (dropout.h) of dout.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace pp::kernels {

// x, y, out: [range.n]; out may be x or y.
struct ResidualArgs {
  MaskedRange range;
  const float* x = nullptr;
  const float* y = nullptr;
  float* out = nullptr;  // =
  DropoutKey dropout;
};

namespace cpu {

void Residual(const ResidualArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
