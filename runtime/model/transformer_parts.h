// What the three transformer*.cc share: names of tensors and places, and nothing that others
// need.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/model/transformer.h"

namespace pp {

// A layer's tensors, in model order.
enum : int {
  kNorm1Weight,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kProjWeight,
  kProjBias,
  kNorm2Weight,
  kNorm2Bias,
  kHiddenWeight,
  kHiddenBias,
  kMlpWeight,
  kMlpBias,
  kLayerTensors
};

// Operations with dropout; with the layer's number they make a site. The embedding counts as one
// of layer 0.
enum : int { kAttentionDropout = 0, kProjDropout = 1, kMlpDropout = 2, kEmbeddingDropout = 7 };

inline float *At(std::byte *base, int64_t offset) {
  return reinterpret_cast<float *>(base + offset);
}

// LayerStash as pointers.
struct Transformer::Saved {
  float *mean1, *rstd1, *qkv, *lse, *context, *middle, *mean2, *rstd2, *hidden;
};

struct Transformer::SavedHead {
  float *mean, *rstd, *statistics, *logits;
};

// LayerWork as pointers.
struct Transformer::Work {
  float *d_mlp, *d_hidden, *d_proj, *d_qkv, *d_norm;
};

}  // namespace pp
