// The gradient's norm and its clipping on a GPU: one block, for a few thousand values. Doubles,
// like the blocks' sums; they cost nothing here.
#include "kernels/clip.h"
#include "kernels/cuda/block_sum_cuda.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

// A thread takes every 1024th block.
__global__ void __launch_bounds__(kThreads) JoinBlocks(ClipArgs a) {
  double mine = 0;
  for (int64_t i = Thread(); i < a.blocks; i += kThreads) mine += a.norm[i];
  const double root = sqrt(BlockSum<kThreads>(mine));
  if (Thread() != 0) return;
  *a.clipped = {};
  FinishClip(a, root);
}

}  // namespace

void Clip(const ClipArgs& args, Stream stream) {
  Launch<JoinBlocks>({.threads = kThreads, .shared = sizeof(BlockSums<kThreads>)}, stream, args);
}

}  // namespace pp::kernels::cuda
