// Times the algorithms of matrix products on a GPU, and takes the fastest one of each.
#pragma once

#include <vector>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/gemm_table.h"

namespace pp {

// Each shape once; one with an epilogue without it where cuBLASLt has no such product, or where a
// kernel of its own behind the product is faster. Operands are random numbers. The driver is of no
// further use. Failed: the GPU fails. Invalid: it has no room for the operands, or no algorithm for
// a product.
Result<TunedGemms> TuneGemms(CudaDriver* driver, const std::vector<kernels::MatmulShape>& shapes);

}  // namespace pp
