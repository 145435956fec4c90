// The classifier. For each row r of logits, with target t:
//   lse = log(sum over v of exp(logits[r,v])),  loss = lse - logits[r,t]
//   dlogits[r,v] = (exp(logits[r,v] - lse) - (v == t)) * scale
// A NaN or an infinite logit makes the row's loss NaN (or infinite) and never goes unnoticed.
// A row whose target is kIgnored takes no part, whatever its logits: loss 0, lse 0, dlogits 0.
#pragma once

#include <cstdint>

namespace pp::kernels {

inline constexpr int32_t kIgnored = -1;

struct CrossEntropyForwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;           // floats from one row of logits to the next; 0: vocabulary
  const float* logits = nullptr;    // [rows, vocabulary]
  const int32_t* target = nullptr;  // [rows], 0 <= target < vocabulary, or kIgnored
  float* lse = nullptr;             // [rows], =
  double* loss = nullptr;           // one number, = sum of the rows' losses, in the order of rows
};

struct CrossEntropyBackwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;
  float* logits = nullptr;          // [rows, vocabulary]; becomes dlogits, =
  const int32_t* target = nullptr;  // [rows]
  const float* lse = nullptr;       // [rows], of the forward
  float scale = 1;                  // 1 / (all tokens of the step)
};

namespace cpu {

void CrossEntropyForward(const CrossEntropyForwardArgs& args);
void CrossEntropyBackward(const CrossEntropyBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
