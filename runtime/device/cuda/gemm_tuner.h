// Times the algorithms of matrix products on a GPU, and picks the fastest for each.
#pragma once

#include <vector>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/experiments.h"
#include "runtime/device/cuda/gemm_table.h"

namespace pp {

// Each shape once; one with an epilogue without it if cuBLASLt has no such product, or if a
// separate kernel after the product is faster; none if cuBLASLt refuses it.
//
// Operands are random, and rotate past the L2 cache. Up to 128 algorithms are timed roughly, as far
// as half a second for each shape allows, but always the library's first sixteen; then the best few
// by the median of several rounds.
// The driver cannot be used afterwards. Failed: the GPU fails. Invalid: it has no memory for the
// operands.
Result<TunedGemms> TuneGemms(CudaDriver* driver, const std::vector<kernels::MatmulShape>& shapes,
                             const CudaExperiments& experiments = {});

}  // namespace pp
