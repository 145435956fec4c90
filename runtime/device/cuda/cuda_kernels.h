// The kernels of a GPU, launched into one stream.
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

// `workspace`: WorkspaceOf(job), on the device. Throws std::bad_alloc if the host has no memory.
// REQUIRES: the job counts a GPU's memory.
std::unique_ptr<Kernels> MakeCudaKernels(CudaDriver* driver, CudaDriver::Stream stream,
                                         const Job& job, std::byte* workspace,
                                         const CudaKernelsOptions& options);

// Kernels::Fuses: a file of algorithms decides it by listing the product with its epilogue, or
// without it. REQUIRES: the product has one.
bool FusesProduct(CudaDriver* driver, const kernels::MatmulShape& shape, const GemmTable* gemms);

}  // namespace pp
