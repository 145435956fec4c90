// out[b,t,:] = dropout(table[token(b,t),:] + position[place(b,t),:]), and its backward; place(b,t)
// is t, unless `place` says otherwise.
//
// The backward adds rows in the order of (b,t), so that a token that occurs twice is summed in a
// fixed order. It touches few rows of dtable: the caller fills both gradients with zeros first.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

template <typename N>
struct EmbeddingForwardArgs {
  int64_t batch = 0, tokens = 0, channels = 0;
  // The table has the tokens [first, first + vocabulary); others are rows of zeros.
  int64_t first = 0, vocabulary = 0;
  const int32_t* token = nullptr;   // [batch, tokens]
  const float* table = nullptr;     // [vocabulary, channels]
  const float* position = nullptr;  // [at least tokens, channels], or null: zeros
  N* out = nullptr;                 // [batch, tokens, channels], =
  DropoutKey dropout;
  const int32_t* place = nullptr;  // [batch, tokens], below tokens; null: t
};

template <typename N>
struct EmbeddingBackwardArgs {
  int64_t batch = 0, tokens = 0, channels = 0;
  int64_t first = 0, vocabulary = 0;
  const int32_t* token = nullptr;  // [batch, tokens]
  const N* dout = nullptr;         // [batch, tokens, channels]
  float* dtable = nullptr;         // [vocabulary, channels], += in the rows that occur
  float* dposition = nullptr;  // [at least tokens, channels], += in the first `tokens` rows; null
                               // if the forward has none
  DropoutKey dropout;
  const int32_t* place = nullptr;  // as in the forward
};

namespace cpu {

template <typename N>
void EmbeddingForward(const EmbeddingForwardArgs<N>& args);
template <typename N>
void EmbeddingBackward(const EmbeddingBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void EmbeddingForward(const EmbeddingForwardArgs<N>& args, Stream stream);
template <typename N>
void EmbeddingBackward(const EmbeddingBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
