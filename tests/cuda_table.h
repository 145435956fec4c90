// The GPU's kernels in a table like that of a CPU's: on a GPU, or emulated (kernels/block.h),
// depending on what the program links. Two remain the CPU's: RandomNormal, as weights are made on
// the host, and MatmulRun, as products are cuBLASLt's.
#pragma once

#include <span>

#include "kernels/isa.h"
#include "tests/kernel_cases.h"

namespace pp::kernels {

// Each works on memory that host and device share, and has finished when it returns.
CpuKernels CudaKernels();

// For kernels that only a GPU has.
std::span<const Case> CudaCases();

// The program defines how it waits for what it has just started.
void FinishKernel();

}  // namespace pp::kernels
