// The memory that kernels need beside their operands: how much a plan counts for a rank, and how
// much the kernels then use. All that other folders of the plan's side know of kernels.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention_layout.h"
#include "kernels/bias.h"
#include "kernels/matmul_blocks.h"
#include "kernels/norm.h"

namespace pp::kernels {

// What determines the size, over all operators of a model.
struct WorkspaceShape {
  AttentionShape attention;
  int64_t norm_channels = 0;
  int64_t bias_columns = 0;  // of all biases whose gradients are computed together
};

namespace cpu {

// Of one thread; N is the type of activations. One kernel at a time uses it.
template <typename N>
int64_t WorkspaceBytes(const WorkspaceShape& shape) {
  const int64_t floats =
      std::max(LayOutAttention<N>(shape.attention).total, ScratchFloats(kForwardNumbers<N>));
  return floats * static_cast<int64_t>(sizeof(float));
}

}  // namespace cpu

namespace cuda {

// Of cuBLASLt's products: what NVIDIA and TransformerEngine give it on an H100.
inline constexpr int64_t kProductBytes = int64_t{32} << 20, kProductAlign = 256;
// As much for each stream with products: one of all work, and one of weights' gradients beside it.
inline constexpr int kProductStreams = 2;

// Of our own kernels, of which one at a time uses it.
inline int64_t WorkspaceBytes(const WorkspaceShape& shape) {
  const int64_t floats =
      std::max(NormScratchFloats(shape.norm_channels), BiasScratchFloats(shape.bias_columns));
  return std::max(floats * static_cast<int64_t>(sizeof(float)),
                  static_cast<int64_t>(AttentionScratchBytes(shape.attention)));
}

}  // namespace cuda
}  // namespace pp::kernels
