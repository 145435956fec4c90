// The driver that is CUDA itself: its runtime, and cuBLASLt for matrix products.
#pragma once

#include <memory>

#include "runtime/device/cuda/driver.h"

namespace pp {

// Invalid: there is no GPU that CUDA can use; the text says why.
Result<int> CountGpus();

// Of one GPU, 0 <= gpu < CountGpus(). Several drivers of one GPU share it.
std::unique_ptr<CudaDriver> MakeCudaDriver(int gpu);

}  // namespace pp
