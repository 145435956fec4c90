// The kernels of a GPU, put into one stream.
#pragma once

#include <memory>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

struct CudaKernelsOptions {
  const GemmTable* gemms = nullptr;  // null, or has none for a product: cuBLASLt's first choice
  bool stochastic_rounding = false;  // of a bf16 job's weights for products (kernels/round.h)
};

// Their working space is the driver's, beside the arena: std::bad_alloc where there is none.
std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, const CudaKernelsOptions& options);

// Kernels::Fuses: a file of algorithms says so by having the product with its epilogue, or without
// it. REQUIRES: the product has one.
bool FusesProduct(CudaDriver* driver, const kernels::MatmulShape& shape, const GemmTable* gemms);

}  // namespace pp
