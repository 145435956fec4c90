// The kernels for a GPU, as the table of a CPU's has them: on a GPU, or emulated (kernels/block.h),
// as the program links them. Two stay the CPU's: RandomNormal, as weights are made on the host, and
// MatmulRun, as products are cuBLASLt's.
#pragma once

#include <span>

#include "kernels/isa.h"
#include "tests/kernel_cases.h"

namespace pp::kernels {

// Each on memory that host and device share, and over when it returns.
CpuKernels CudaKernels();

// Of what a GPU alone has.
std::span<const Case> CudaCases();

// The program says how it waits for what it has just started.
void FinishKernel();

}  // namespace pp::kernels
