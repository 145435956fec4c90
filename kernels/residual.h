// out = x + dropout(y). The backward is dx = dout and, for dy, Dropout (dropout.h) of dout.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace pp::kernels {

// x, y, out: [batch, sequence_elements]; out may be x or y. Row b is sequence first_sequence + b.
struct ResidualArgs {
  int64_t batch = 0;
  int64_t sequence_elements = 0;
  const float* x = nullptr;
  const float* y = nullptr;
  float* out = nullptr;  // =
  DropoutKey dropout;
};

namespace cpu {

void Residual(const ResidualArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
