// Draws a token from softmax(logits / temperature), by the Gumbel-max trick (Gumbel, 1954): the one
// with the largest score
//   score(v) = logits[v] / temperature - log(-log u(v)),   u(v) uniform in (0, 1)
// where u(v) is word v%4 of Philox4x32-10 with key = seed and counter = { v/4 (64 bits), number
// (32), 0xfffffffe }, which dropout and weight initialisation never use. So parts of a vocabulary
// score their own tokens, and the best of the parts is the best of the whole, however it is cut.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

// For the tokens [first, first + n), possibly none.
template <typename N>
struct DrawArgs {
  int64_t n = 0, first = 0;
  const N* logits = nullptr;  // [n]
  float temperature = 1;      // 0: the largest logit, of equal ones the first
  uint64_t seed = 0;
  uint32_t number = 0;    // of the draw
  float* best = nullptr;  // [2], = the best score and its token; -infinity and -1 where n is 0 or
                          // all are NaN. Tokens below 2^24.
};

// The token with the best score, of equal ones the first part's.
struct DrawJoinArgs {
  int64_t parts = 0, stride = 0;  // floats from one part's to the next one's
  const float* best = nullptr;    // of the first part
  double* token = nullptr;        // one value, =
};

namespace cpu {

template <typename N>
void Draw(const DrawArgs<N>& args);
void DrawJoin(const DrawJoinArgs& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void Draw(const DrawArgs<N>& args, Stream stream);
void DrawJoin(const DrawJoinArgs& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
