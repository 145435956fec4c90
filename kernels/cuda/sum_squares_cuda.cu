// Sums of squares on a GPU. Memory-bound: 4 bytes per element.
//
// A block of threads takes a block of the tensor, a thread every 256th group of four elements.
// Doubles, as the norm of a large model sums more squares than a float has digits for.
#include "kernels/cuda/block_sum_cuda.h"
#include "kernels/cuda/elements_cuda.h"
#include "kernels/cuda/tensors_cuda.h"
#include "kernels/sum_squares.h"

namespace pp::kernels::cuda {
namespace {

constexpr int kThreads = 256, kSize = kPackSize<float>;

template <Access kAccess>
__global__ void __launch_bounds__(kThreads)
    SumBlock(const __grid_constant__ TensorBatch<SumSquaresTensor> batch) {
  const TensorBlock place = FindTensor(batch);
  const SumSquaresTensor& a = batch.tensors[place.tensor];
  const int64_t begin = place.block * kSumSquaresBlock;
  const int64_t end = begin + kSumSquaresBlock < a.n ? begin + kSumSquaresBlock : a.n;
  double sums[kSize] = {};
  for (int64_t i = begin + Thread() * kSize; i < end; i += kThreads * kSize) {
    const auto x = LoadFirst<kSize, kAccess>(a.x + i, end - i, 0);
    for (int j = 0; j < kSize; ++j) sums[j] += static_cast<double>(x.at[j]) * x.at[j];
  }
  const double sum = BlockSum<kThreads>((sums[0] + sums[1]) + (sums[2] + sums[3]));
  if (Thread() == 0) a.partial[place.block] = sum;
}

}  // namespace

void SumSquares(const SumSquaresArgs& args, Stream stream) {
  const Grid grid = {.threads = kThreads, .shared = sizeof(BlockSums<kThreads>)};
  auto access = Access::kPacks;
  for (const SumSquaresTensor& tensor : args.tensors) access = Both(access, AccessOf(tensor.x));
  if (access == Access::kPacks) {
    LaunchTensors<SumBlock<Access::kPacks>>(args.tensors, SumSquaresBlocks, grid, stream);
  } else {
    LaunchTensors<SumBlock<Access::kSingle>>(args.tensors, SumSquaresBlocks, grid, stream);
  }
}

}  // namespace pp::kernels::cuda
