// The classifier. For each row r of logits, with target t:
//   largest = max over v of logits[r,v],  log_sum = log(sum over v of exp(logits[r,v] - largest))
//   loss = largest - logits[r,t] + log_sum
//   dlogits[r,v] = (exp(logits[r,v] - largest - log_sum) - (v == t)) * scale
// The two are kept apart: their sum would round log_sum to the digits that a large logit has.
// A NaN or an infinite logit makes the row's loss NaN (or infinite) and never goes unnoticed.
// A row whose target is kIgnored takes no part, whatever its logits: loss 0, statistics 0, dlogits
// 0.
#pragma once

#include <cstdint>

namespace pp::kernels {

inline constexpr int32_t kIgnored = -1;

struct CrossEntropyForwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;           // floats from one row of logits to the next; 0: vocabulary
  const float* logits = nullptr;    // [rows, vocabulary]
  const int32_t* target = nullptr;  // [rows], 0 <= target < vocabulary, or kIgnored
  float* statistics = nullptr;      // [rows, 2], = largest, log_sum
  double* loss = nullptr;           // one number, = sum of the rows' losses, in the order of rows
};

struct CrossEntropyBackwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;
  float* logits = nullptr;            // [rows, vocabulary]; becomes dlogits, =
  const int32_t* target = nullptr;    // [rows]
  const float* statistics = nullptr;  // [rows, 2], of the forward
  float scale = 1;                    // 1 / (all tokens of the step)
};

namespace cpu {

void CrossEntropyForward(const CrossEntropyForwardArgs& args);
void CrossEntropyBackward(const CrossEntropyBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
