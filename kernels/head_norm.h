// RMSNorm of each head of the queries and of the keys (norm.h), as Qwen3 has it: with the same
// gamma for all heads of queries, and another one for those of keys. Values pass as they are. A row
// of a packed x holds all queries, then all keys, then all values (attention.h).
#pragma once

#include <cstdint>

#include "kernels/norm.h"
#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

template <typename N>
struct HeadNormForwardArgs {
  int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const N* x = nullptr;            // [rows, heads + 2*kv_heads, head_dim]
  const float* q_gamma = nullptr;  // [head_dim]
  const float* k_gamma = nullptr;  // [head_dim]
  N* y = nullptr;                  // like x, =
  float* rstd = nullptr;           // [rows, heads + kv_heads], =
  float epsilon = 1e-6f;
};

template <typename N>
struct HeadNormBackwardArgs {
  int64_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const N* x = nullptr;  // [rows, heads + 2*kv_heads, head_dim]
  const float* q_gamma = nullptr;
  const float* k_gamma = nullptr;
  const float* rstd = nullptr;  // [rows, heads + kv_heads]
  N* d = nullptr;               // like x: the gradient with respect to y, then that to x
  float* dgamma = nullptr;      // [2, head_dim], =: of queries, then of keys
  float* scratch = nullptr;     // on a GPU: NormScratchFloats(head_dim)
};

namespace cpu {

template <typename N>
void HeadNormForward(const HeadNormForwardArgs<N>& args);
template <typename N>
void HeadNormBackward(const HeadNormBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

// Sums over rows are in one order: the same bits in every run. REQUIRES: head_dim is at most
// kMostHeadDim (attention.h).
template <typename N>
void HeadNormForward(const HeadNormForwardArgs<N>& args, Stream stream);
template <typename N>
void HeadNormBackward(const HeadNormBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
