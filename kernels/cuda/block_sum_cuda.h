// Sums of doubles over a block, by a fixed tree: the bits depend only on the number of threads.
// There are few of them, so doubles cost nothing compared with reading the data.
#pragma once

#include "kernels/block/block.h"

namespace pp::kernels::cuda {

template <int kThreads>
struct BlockSums {
  double of_warps[kThreads / kWarp];
};

// Returns, in the first thread, the sum over the block, whose shared memory is BlockSums<kThreads>.
template <int kThreads>
__device__ double BlockSum(double mine) {
  auto& shared = Shared<BlockSums<kThreads>>();
  mine = WarpSum(mine);
  if (Lane() == 0) shared.of_warps[Warp()] = mine;
  SyncBlock();
  if (Thread() != 0) return 0;
  double sum = 0;
  for (const double of_warp : shared.of_warps) sum += of_warp;
  return sum;
}

}  // namespace pp::kernels::cuda
