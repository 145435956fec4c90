// The kernels for a GPU, emulated (kernels/block.h), as the table of a CPU's has them.
#pragma once

#include "kernels/isa.h"

namespace pp::kernels {

// Each at once, on memory of the host.
CpuKernels EmulatedKernels();

}  // namespace pp::kernels
