#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/parallel.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {

template <typename N>
void BiasGradient(const BiasGradientArgs<N>& args) {
  for (const BiasTensor<N>& tensor : args.tensors) {
    ParallelRanges(tensor.n, kColumnRange, [&](int64_t begin, int64_t end) {
      float sum[kColumnRange] = {};
      for (int64_t r = 0; r < args.rows; ++r) {
        const N* dy = tensor.dy + r * tensor.n + begin;
        for (int64_t c = 0; c < end - begin; c += kLanes)
          Store(sum + c, Load(sum + c) + LoadUpTo(dy + c, end - begin - c));
      }
      StoreColumns(sum, end - begin, args.update, tensor.dbias + begin);
    });
  }
}

PP_INSTANTIATE(BiasGradient)

}  // namespace pp::kernels::PP_ISA
