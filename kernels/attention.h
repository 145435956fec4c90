// Causal multi-head attention. For each sequence and head, with D = head_dim, C = heads*D:
//   S = Q K^T / sqrt(D), first[query] <= key <= query;   P = softmax(S);   O = dropout(P) V
//
// `first` never decreases from one query to the next, so that a key is seen by queries in a row,
// and what is computed of S is a band; tiles that no pair needs are skipped. A window of the last W
// keys is one such list, a batch of packed documents another.
//
// Tile by tile (Dao et al., "FlashAttention", 2022): there is no T x T matrix. The forward keeps
// lse[query] = log(sum over keys of exp(S)), and the backward recomputes P = exp(S - lse):
//   D_i = sum(dO*O),  dV = dropout(P)^T dO,  dP = dropout'(dO V^T),  dS = P*(dP - D_i)
//   dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D)
//
// qkv is packed: a row (b,t) holds all queries, then all keys, then all values; head h has [h*D,
// h*D+D) of each. With fewer heads of keys and values (grouped-query attention, Ainslie et al.,
// 2023) head h of the queries uses number h / (heads/kv_heads), and the gradients of keys and
// values are sums over those queries' heads, in order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dropout.h"
#include "kernels/numbers.h"
#include "kernels/stream.h"

namespace pp::kernels {

struct AttentionShape {
  int64_t batch = 0, tokens = 0, heads = 0, head_dim = 0;
  int64_t kv_heads = 0;    // divides heads; 0: as many
  int64_t first_head = 0;  // index of head 0 in the whole layer, for dropout
};

// The first key that each query sees. REQUIRES: at[t] <= t, at[t] <= at[t + 1].
struct FirstKeys {
  const int32_t* at = nullptr;  // [tokens], or [batch, tokens]; null: 0 for all
  int64_t stride = 0;           // from a sequence's to the next one's: 0, or tokens
};

template <typename N>
struct AttentionForwardArgs {
  AttentionShape shape;
  const N* qkv = nullptr;  // [batch, tokens, (heads + 2*kv_heads)*head_dim]
  N* out = nullptr;        // [batch, tokens, heads*head_dim], =
  float* lse = nullptr;    // [batch, heads, tokens], =
  DropoutKey dropout;
  FirstKeys first_keys;
  void* scratch = nullptr;  // AttentionScratchBytes, aligned to 64
  void* helpers = nullptr;  // as much for each further thread, one after the other
};

template <typename N>
struct AttentionBackwardArgs {
  AttentionShape shape;
  const N* qkv = nullptr;      // [batch, tokens, (heads + 2*kv_heads)*head_dim]
  const N* out = nullptr;      // [batch, tokens, heads*head_dim], of the forward
  const float* lse = nullptr;  // [batch, heads, tokens], of the forward
  const N* dout = nullptr;     // [batch, tokens, heads*head_dim]
  N* dqkv = nullptr;           // like qkv, =; may not be qkv
  DropoutKey dropout;
  FirstKeys first_keys;
  void* scratch = nullptr;  // AttentionScratchBytes, aligned to 64
  void* helpers = nullptr;  // as much for each further thread, one after the other
};

namespace cpu {

// For one thread, enough for a forward or a backward: O(tokens * head_dim).
template <typename N>
size_t AttentionScratchBytes(const AttentionShape& shape);

template <typename N>
void AttentionForward(const AttentionForwardArgs<N>& args);
template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args);

}  // namespace cpu

namespace cuda {

// The backward's only: a float for each query.
inline size_t AttentionScratchBytes(const AttentionShape& shape) {
  return static_cast<size_t>(shape.batch * shape.heads * shape.tokens) * sizeof(float);
}

inline constexpr int kMostHeadDim = 256;

// No atomic sums: the same bits in every run. With two-byte elements, dropout(P) and dS are rounded
// before they are multiplied by V, dO, K and Q; all sums are fp32. REQUIRES: head_dim is at most
// kMostHeadDim.
template <typename N>
void AttentionForward(const AttentionForwardArgs<N>& args, Stream stream);
template <typename N>
void AttentionBackward(const AttentionBackwardArgs<N>& args, Stream stream);

}  // namespace cuda
}  // namespace pp::kernels
