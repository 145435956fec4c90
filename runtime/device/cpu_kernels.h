// The kernels of this machine's processors.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device/kernels.h"
#include "schema/model/layout.h"

namespace pp {

// Must be called on the thread that uses the kernels, which gets `threads` threads, itself
// included. Throws std::bad_alloc or std::system_error if the machine has no memory or no thread
// left. `workspace`: WorkspaceOf(job), or null, where there is no plan: they take it themselves, as
// they take that of all threads but the first. REQUIRES: the job counts a CPU's memory.
std::unique_ptr<Kernels> MakeCpuKernels(const Job& job, int threads,
                                        std::byte* workspace = nullptr);

}  // namespace pp
