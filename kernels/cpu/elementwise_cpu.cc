#include "kernels/cpu/parallel.h"
#include "kernels/isa.h"

namespace pp::kernels::PP_ISA {
namespace {
constexpr int64_t kBlock = 65536;
}

void Fill(const FillArgs& args) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) args.out[i] = args.value;
  });
}

void Add(const AddArgs& args) {
  ParallelRanges(args.n, kBlock, [&](int64_t i, int64_t end) {
    for (; i < end; ++i) args.out[i] += args.x[i];
  });
}

}  // namespace pp::kernels::PP_ISA
