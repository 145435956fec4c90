// Rotary position embedding (Su et al., "RoFormer", 2021), in place, pairing elements as in Hugging
// Face's LLaMA: with h = head_dim/2 and the angle a(p,i) of position p, which is t unless
// `position` says otherwise,
//   x[i]   = x[i] cos a(p,i) - x[i+h] sin a(p,i)
//   x[i+h] = x[i+h] cos a(p,i) + x[i] sin a(p,i)       i < h
// The backward rotates the gradient by the same angles in the other direction.
#pragma once

#include <cstdint>

#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

enum class Turn { kForward, kBackward };

template <typename N>
struct RopeArgs {
  int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;  // head_dim is even
  int64_t row_stride = 0;         // elements from one token's first head to the next one's
  const float* cosine = nullptr;  // [tokens, head_dim/2]
  const float* sine = nullptr;    // [tokens, head_dim/2]
  N* x = nullptr;                 // [batch, tokens, heads, head_dim], the heads side by side
  Turn turn = Turn::kForward;
  const int32_t* position = nullptr;  // [batch, tokens], below tokens; null: t
};

namespace cpu {

template <typename N>
void Rope(const RopeArgs<N>& args);

}  // namespace cpu

namespace cuda {

template <typename N>
void Rope(const RopeArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
