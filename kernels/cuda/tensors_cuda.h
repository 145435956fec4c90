// GPU kernels that go over all tensors of a stage: a launch takes as many as fit in its 4096 bytes
// of parameters, and each block finds its own.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/block/block.h"

namespace pp::kernels::cuda {

// What one launch takes.
template <typename Tensor>
struct TensorBatch {
  static constexpr int kMost = 3840 / (sizeof(Tensor) + sizeof(int32_t));

  Tensor tensors[kMost];
  int32_t ends[kMost];  // the blocks of tensors[i] end before block ends[i]
  int32_t count = 0;

  int32_t blocks() const { return count > 0 ? ends[count - 1] : 0; }
};

// A block's place.
struct TensorBlock {
  int32_t tensor;
  int64_t block;  // of the tensor's
};

template <typename Tensor>
__device__ TensorBlock FindTensor(const TensorBatch<Tensor>& batch) {
  const int32_t block = BlockX();
  int32_t low = 0, high = batch.count - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (block < batch.ends[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return {low, block - (low > 0 ? batch.ends[low - 1] : 0)};
}

// `kernel`(batch, args...). `blocks`(n): for a tensor of n elements. `grid` lacks x.
template <auto kKernel, typename Tensor, typename Blocks, typename... Args>
void LaunchTensors(std::span<const Tensor> tensors, const Blocks& blocks, Grid grid, Stream stream,
                   const Args&... args) {
  TensorBatch<Tensor> batch;
  const auto launch = [&] {
    grid.x = batch.blocks();
    Launch<kKernel>(grid, stream, batch, args...);
    batch.count = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.n == 0) continue;
    if (batch.count == batch.kMost) launch();
    const int32_t begin = batch.blocks();
    batch.tensors[batch.count] = tensor;
    batch.ends[batch.count++] = begin + static_cast<int32_t>(blocks(tensor.n));
  }
  launch();
}

}  // namespace pp::kernels::cuda
