// The kernels of a GPU, put into one stream.
#pragma once

#include <memory>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

// Their working space is the driver's, beside the arena: std::bad_alloc where there is none.
// `gemms` has algorithms for products; null, or has none for one: cuBLASLt's first choice.
std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, const GemmTable* gemms);

// Kernels::Fuses: a file of algorithms says so by having the product with its epilogue, or without
// it.
bool FusesProduct(CudaDriver* driver, const kernels::MatmulShape& shape, const GemmTable* gemms);

}  // namespace pp
