// The kernels of this machine's processors.
#pragma once

#include <memory>

#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

// Must be called on the thread that uses the kernels, which gets `threads` threads, itself
// included. Throws std::bad_alloc or std::system_error if the machine has no memory or no thread
// left.
std::unique_ptr<Kernels> MakeCpuKernels(const Job& job, int threads);

}  // namespace pp
