// The layout of attention's scratch for one thread. The same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace pp::kernels {

// Scores of kQueryBlock queries with kKeyBlock keys exist at the same time. A block of queries
// never spans two blocks of keys.
inline constexpr int64_t kQueryBlock = 64, kKeyBlock = 512;
static_assert(kKeyBlock % kQueryBlock == 0);

inline int64_t QueriesOfKey(const AttentionShape& shape) {
  return shape.kv_heads == 0 ? 1 : shape.heads / shape.kv_heads;
}

struct AttentionLayout {
  int64_t width;  // head_dim, in whole vectors
  int64_t keys;   // of a block, plus space for a panel to extend beyond them
  int64_t band;   // floats from one query's scores to the next: an odd number of cache lines
  // Offsets in floats. A forward has all keys and values, a backward those of a block of keys. If
  // activations' gradients are not floats, the sums over several blocks of keys for all queries of
  // a head of keys are kept in `queries`; it is -1 otherwise.
  int64_t forward[2], backward[5], queries;
  int64_t block[2], scores[2], factors, dots, total;
};

template <typename N>
inline AttentionLayout LayOutAttention(const AttentionShape& shape) {
  AttentionLayout layout = {};
  const int64_t tokens = (shape.tokens + 63) / 32 * 32;
  layout.keys = tokens < kKeyBlock + 32 ? tokens : kKeyBlock + 32;
  layout.width = (shape.head_dim + 31) / 32 * 32;
  layout.band = layout.keys + 16;
  const auto take = [&](int64_t floats) {
    const int64_t at = layout.total;
    layout.total += (floats + 15) / 16 * 16;
    return at;
  };
  for (auto& at : layout.forward) at = take(tokens * layout.width);
  const int64_t forward = layout.total;
  layout.total = 0;  // the same memory
  for (auto& at : layout.backward) at = take(layout.keys * layout.width);
  layout.total = forward > layout.total ? forward : layout.total;
  for (auto& at : layout.block) at = take(kQueryBlock * layout.width);
  for (auto& at : layout.scores) at = take(kQueryBlock * layout.band);
  layout.factors = take(layout.band + 64);
  layout.dots = take(tokens * QueriesOfKey(shape));
  const bool sums = sizeof(N) < sizeof(float) && shape.tokens > kKeyBlock;
  layout.queries = sums ? take(tokens * QueriesOfKey(shape) * layout.width) : -1;
  return layout;
}

}  // namespace pp::kernels
