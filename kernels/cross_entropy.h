// The classifier. For each row r of logits, with target t:
//   largest = max over v of logits[r,v],  log_sum = log(sum over v of exp(logits[r,v] - largest))
//   loss = largest - logits[r,t] + log_sum
//   dlogits[r,v] = (exp(logits[r,v] - largest - log_sum) - (v == t)) * scale
// The forward computes both, a row's gradient while the row is in a cache or in shared memory.
// where the scale is that of the arguments times, if there is one, the loss's (loss_scale.h).
// `largest` and log_sum are kept apart: in their sum log_sum would lose digits to a large logit.
// A NaN or an infinite logit makes the row's loss NaN (or infinite) and never goes unnoticed.
// If the vocabulary is cut into parts, each computes what it knows of a row (Part), Join makes the
// loss from them (Shoeybi et al., "Megatron-LM", 2019), and each its part of the gradient
// (Backward).
// A row whose target is kIgnored takes no part, whatever its logits: loss 0, statistics 0, dlogits
// 0.
#pragma once

#include <cstdint>

#include "kernels/loss_scale.h"
#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

inline constexpr int32_t kIgnored = -1;

template <typename N>
struct CrossEntropyForwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;           // elements from one row of logits to the next; 0: vocabulary
  int64_t padding = 0;              // columns of a row after the vocabulary; their dlogits are 0
  const N* logits = nullptr;        // [rows, vocabulary]
  const int32_t* target = nullptr;  // [rows], 0 <= target < vocabulary, or kIgnored
  double* losses = nullptr;         // [rows], =
  // One double, = sum of the rows' losses, in the order of rows, on a GPU by a fixed tree; null:
  // not computed.
  double* loss = nullptr;
  N* dlogits = nullptr;  // [rows, vocabulary], =; it may be `logits`; null: not computed
  float scale = 1;       // 1 / (all tokens of the step)
  const LossScale* scaling = nullptr;
};

// For the tokens [first, first + vocabulary), possibly none.
template <typename N>
struct CrossEntropyPartArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;
  int64_t first = 0;
  const N* logits = nullptr;        // [rows, vocabulary]
  const int32_t* target = nullptr;  // [rows]
  // [rows, 3], = largest, sum over v of exp(logits - largest), and the target's logit, or 0 if it
  // is in another part.
  float* part = nullptr;
};

struct CrossEntropyJoinArgs {
  int64_t rows = 0, parts = 0;
  const float* all = nullptr;       // [parts, rows, 3]
  const int32_t* target = nullptr;  // [rows]
  float* statistics = nullptr;      // [rows, 2], = largest, log_sum
  double* loss = nullptr;           // as in the forward
};

template <typename N>
struct CrossEntropyBackwardArgs {
  int64_t rows = 0, vocabulary = 0;
  int64_t row_stride = 0;
  int64_t first = 0;                  // token of the first column
  int64_t padding = 0;                // columns after the vocabulary; their dlogits are 0
  N* logits = nullptr;                // [rows, vocabulary]; becomes dlogits, =
  const int32_t* target = nullptr;    // [rows]
  const float* statistics = nullptr;  // [rows, 2], of Join
  float scale = 1;                    // as in the forward
  const LossScale* scaling = nullptr;
};

namespace cpu {

template <typename N>
void CrossEntropyForward(const CrossEntropyForwardArgs<N>& args);
template <typename N>
void CrossEntropyPart(const CrossEntropyPartArgs<N>& args);
void CrossEntropyJoin(const CrossEntropyJoinArgs& args);
template <typename N>
void CrossEntropyBackward(const CrossEntropyBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void CrossEntropyForward(const CrossEntropyForwardArgs<N>& args, Stream stream);
template <typename N>
void CrossEntropyPart(const CrossEntropyPartArgs<N>& args, Stream stream);
void CrossEntropyJoin(const CrossEntropyJoinArgs& args, Stream stream);
template <typename N>
void CrossEntropyBackward(const CrossEntropyBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
