// The GPU's kernels in a table like that of a CPU's: on a GPU, or emulated (kernels/block/block.h),
// depending on what the program links. RandomNormal remains the CPU's, as weights are made on the
// host, and products are those of the plain kernel, not cuBLASLt's.
#pragma once

#include <functional>
#include <span>

#include "kernels/isa.h"
#include "tests/kernels/kernel_cases.h"

namespace pp::kernels {

// Each works on memory that host and device share, and has finished when it returns.
CpuKernels CudaKernels();

// As the CUDA device does: rounds weights, has them multiplied in the stream null, and, unless it
// is `fused`, runs the kernel of an epilogue afterwards.
void RunProduct(
    const MatmulRunArgs& run, bool fused,
    const std::function<void(const MatmulShape& shape, const MatmulArgs& args)>& multiply);

// For kernels that only a GPU has.
std::span<const Case> CudaCases();

// The program defines how it waits for what it has just started.
void FinishKernel();

}  // namespace pp::kernels
