#include "kernels/isa.h"
#include "kernels/parallel.h"

namespace pp::kernels::PP_ISA {

// 32 strands, whatever the width of a vector: the same bits on every processor, as the square of a
// float is exact in a double.
void SumSquares(const SumSquaresArgs& args) {
  constexpr int kStrands = 32;
  ParallelRanges(args.n, kSumSquaresBlock, [&](int64_t begin, int64_t end) {
    double sum[kStrands] = {};
    int64_t i = begin;
    for (; i + kStrands <= end; i += kStrands) {
      __builtin_prefetch(args.x + i + 1024);
      __builtin_prefetch(args.x + i + 1024 + 16);
      for (int s = 0; s < kStrands; ++s) {
        sum[s] += static_cast<double>(args.x[i + s]) * static_cast<double>(args.x[i + s]);
      }
    }
    for (; i < end; ++i) {
      sum[i % kStrands] += static_cast<double>(args.x[i]) * static_cast<double>(args.x[i]);
    }
    for (int width = kStrands / 2; width > 0; width /= 2) {
      for (int s = 0; s < width; ++s) sum[s] += sum[s + width];
    }
    args.partial[begin / kSumSquaresBlock] = sum[0];
  });
}

}  // namespace pp::kernels::PP_ISA
