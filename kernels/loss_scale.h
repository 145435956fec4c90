// Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", 2018, section 3), without
// a round trip to the host: gradients of Float16 below 2^-24 are lost, so all of them are computed
// from the loss times a scale, and STEP divides them by it again.
//
//   CrossEntropyForward   multiplies its gradient by the scale
//   Clip                  divides the norm by it, and judges it once a step:
//     not finite   a gradient overflowed: the update is skipped, the scale halved
//     else         the scale is doubled after a given number of good steps in a row
//   AdamW                 divides the gradients by it, or changes nothing (clip.h)
//
// Every rank has its own scale; as all know the same norm, all scales are equal.
#pragma once

#include <cstdint>

// A function that a GPU and the CPU share; versions for different CPU instruction sets are never
// linked into one another.
#ifdef __CUDACC__
#define PP_SHARED_INLINE inline __host__ __device__
#else
#define PP_SHARED_INLINE inline __attribute__((always_inline))
#endif

namespace pp::kernels {

struct LossScale {
  float scale = 65536;  // of the next step
  float used = 0;       // by the step that was judged last
  int64_t step = 0;     // the number of that step; counts from 1
  int64_t good = 0;     // steps in a row since the scale changed
  int64_t skipped = 0;  // updates skipped in the whole training
  int64_t finite = 1;   // 0: the last judged step's norm was not finite

  bool operator==(const LossScale&) const = default;
};

// The first call for a step judges it; a device calls once for each of its stages.
PP_SHARED_INLINE void Judge(LossScale& s, int64_t step, int64_t every, double norm) {
  if (s.step == step) return;
  s.step = step;
  s.used = s.scale;
  s.finite = norm - norm == 0 ? 1 : 0;
  if (s.finite == 0) {
    s.scale /= 2;
    s.good = 0;
    ++s.skipped;
  } else if (++s.good >= every) {
    s.scale *= 2;
    s.good = 0;
  }
}

// beta^n, by the same multiplications everywhere.
PP_SHARED_INLINE double PowerOf(double beta, int64_t n) {
  double power = 1;
  for (; n > 0; n /= 2, beta *= beta)
    if (n % 2 == 1) power *= beta;
  return power;
}

}  // namespace pp::kernels
