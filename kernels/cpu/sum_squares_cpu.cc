#include "kernels/cpu/parallel.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

// 32 partial sums, whatever the width of a vector: the same bits on every processor, as the square
// of a float is exact in a double.
static void SumSquares(const SumSquaresTensor& tensor) {
  constexpr int kStrands = 32;
  ParallelRanges(tensor.n, kSumSquaresBlock, [&](int64_t begin, int64_t end) {
    double sum[kStrands] = {};
    int64_t i = begin;
    for (; i + kStrands <= end; i += kStrands) {
      __builtin_prefetch(tensor.x + i + 1024);
      __builtin_prefetch(tensor.x + i + 1024 + 16);
      for (int s = 0; s < kStrands; ++s) {
        sum[s] += static_cast<double>(tensor.x[i + s]) * static_cast<double>(tensor.x[i + s]);
      }
    }
    for (; i < end; ++i) {
      sum[i % kStrands] += static_cast<double>(tensor.x[i]) * static_cast<double>(tensor.x[i]);
    }
    for (int width = kStrands / 2; width > 0; width /= 2) {
      for (int s = 0; s < width; ++s) sum[s] += sum[s + width];
    }
    tensor.partial[begin / kSumSquaresBlock] = sum[0];
  });
}

void SumSquares(const SumSquaresArgs& args) {
  for (const SumSquaresTensor& tensor : args.tensors) SumSquares(tensor);
}

}  // namespace pp::kernels::PP_ISA
