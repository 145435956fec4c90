// Where attention keeps what in the scratch of one thread. The same for every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace pp::kernels {

inline constexpr int64_t kQueryBlock = 64;  // queries whose scores exist at the same time

struct AttentionLayout {
  int64_t rows;   // tokens, and room for a panel to reach beyond them
  int64_t width;  // head_dim, in whole vectors
  int64_t band;   // floats from one query's scores to the next: an odd number of cache lines
  int64_t by_token[5], block[2], scores[2], factors, total;  // offsets in floats
};

inline AttentionLayout LayOutAttention(const AttentionShape& shape) {
  AttentionLayout layout = {};
  layout.rows = (shape.tokens + 63) / 32 * 32;
  layout.width = (shape.head_dim + 31) / 32 * 32;
  layout.band = layout.rows + 16;
  const auto take = [&](int64_t floats) {
    const int64_t at = layout.total;
    layout.total += (floats + 15) / 16 * 16;
    return at;
  };
  for (auto& at : layout.by_token) at = take(layout.rows * layout.width);
  for (auto& at : layout.block) at = take(kQueryBlock * layout.width);
  for (auto& at : layout.scores) at = take(kQueryBlock * layout.band);
  layout.factors = take(layout.band + 64);
  return layout;
}

}  // namespace pp::kernels
