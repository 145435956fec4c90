// Clips the gradient by its norm (Pascanu et al., 2013), where nothing of a step comes to the host:
//   norm = sqrt(sum of the blocks of sum_squares.h)
//   scale = most > 0 and norm > most ? most / (norm + 1e-6) : 1
// AdamW reads the scale, and changes nothing where the norm is no finite number (adamw.h).
#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace pp::kernels {

struct Clipped {
  float scale = 1;
  float finite = 1;  // 0: the norm is infinite or NaN
};

struct ClipArgs {
  int64_t blocks = 0;
  double* norm = nullptr;      // [blocks + 1]: the blocks; behind them, =, the norm
  double most = 0;             // 0: nothing is clipped
  Clipped* clipped = nullptr;  // =
};

namespace cpu {

// The sum in the order of the blocks.
void Clip(const ClipArgs& args);

}  // namespace cpu

namespace cuda {

// The sum by a fixed tree.
void Clip(const ClipArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
