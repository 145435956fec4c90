#include "kernels/column_sums.h"
#include "kernels/isa.h"
#include "kernels/parallel.h"

namespace pp::kernels::PP_ISA {

void BiasGradient(const BiasGradientArgs& args) {
  ParallelRanges(args.columns, kColumnRange, [&](int64_t begin, int64_t end) {
    float sum[kColumnRange] = {};
    for (int64_t r = 0; r < args.rows; ++r) {
      const float* dy = args.dy + r * args.columns + begin;
      for (int64_t c = 0; c < end - begin; ++c) sum[c] += dy[c];
    }
    StoreColumns(sum, end - begin, args.update, args.dbias + begin);
  });
}

}  // namespace pp::kernels::PP_ISA
