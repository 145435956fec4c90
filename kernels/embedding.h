// out[b,t,:] = dropout(wte[token(b,t),:] + wpe[t,:]), and its backward.
//
// The backward adds rows in the order of (b,t), so that a token that occurs twice is summed in a
// fixed order. It touches few rows of dwte: the caller fills both gradients with zeros first.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace pp::kernels {

struct EmbeddingForwardArgs {
  int64_t batch = 0, tokens = 0, channels = 0;
  const int32_t* token = nullptr;  // [batch, tokens], 0 <= token < rows of wte
  const float* wte = nullptr;      // [vocabulary, channels]
  const float* wpe = nullptr;      // [at least tokens, channels]
  float* out = nullptr;            // [batch, tokens, channels], =
  DropoutKey dropout;
};

struct EmbeddingBackwardArgs {
  int64_t batch = 0, tokens = 0, channels = 0;
  const int32_t* token = nullptr;  // [batch, tokens]
  const float* dout = nullptr;     // [batch, tokens, channels]
  float* dwte = nullptr;           // [vocabulary, channels], += in the rows that occur
  float* dwpe = nullptr;           // [at least tokens, channels], += in the first `tokens` rows
  DropoutKey dropout;
};

namespace cpu {

void EmbeddingForward(const EmbeddingForwardArgs& args);
void EmbeddingBackward(const EmbeddingBackwardArgs& args);

}  // namespace cpu
}  // namespace pp::kernels
