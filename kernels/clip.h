// Clips the gradient by its norm (Pascanu et al., 2013), without a round trip to the host:
//   norm = sqrt(sum of the blocks of sum_squares.h)
//   scale = max_norm > 0 and norm > max_norm ? max_norm / (norm + 1e-6) : 1
// AdamW reads the scale, and changes nothing if the norm is not finite (adamw.h). If gradients are
// those of a scaled loss (loss_scale.h), norm and scale are divided by the loss scale, and AdamW's
// corrections count the updates that were not skipped.
#pragma once

#include <cstdint>

#include "kernels/loss_scale.h"
#include "kernels/stream.h"

namespace pp::kernels {

struct Clipped {
  float scale = 1;
  float finite = 1;                        // 0: the norm is infinite or NaN
  float correction1 = 0, correction2 = 0;  // replace AdamW's, if the loss is scaled
};

struct ClipArgs {
  int64_t blocks = 0;
  double* norm = nullptr;      // [blocks + 1]: the blocks; after them, =, the norm
  double max_norm = 0;         // 0: nothing is clipped
  Clipped* clipped = nullptr;  // =

  LossScale* scaling = nullptr;  // null: the loss is not scaled, and the fields below are not read
  int64_t step = 0, every = 0;   // see Judge
  int64_t update = 0;            // AdamW's update number, counting skipped ones
  double beta1 = 0, beta2 = 0;   // AdamW's
};

// What remains to be done with the root of the sum.
PP_SHARED_INLINE void FinishClip(const ClipArgs& a, double root) {
  Clipped& clipped = *a.clipped;
  double norm = root, used = 1;
  if (a.scaling != nullptr) {
    Judge(*a.scaling, a.step, a.every, root);
    used = a.scaling->used;
    norm = root / used;
    const int64_t updates = a.update - a.scaling->skipped;
    clipped.correction1 = static_cast<float>(1 - PowerOf(a.beta1, updates));
    clipped.correction2 = static_cast<float>(1 - PowerOf(a.beta2, updates));
  }
  a.norm[a.blocks] = norm;
  const bool clips = a.max_norm > 0 && norm > a.max_norm;
  clipped.scale = static_cast<float>((clips ? a.max_norm / (norm + 1e-6) : 1) / used);
  clipped.finite = norm - norm == 0 ? 1 : 0;
}

namespace cpu {

// The sum in the order of the blocks.
void Clip(const ClipArgs& args);

}  // namespace cpu

namespace cuda {

// The sum by a fixed tree.
void Clip(const ClipArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
