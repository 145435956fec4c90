// How fast kernels and products are on a real GPU, at the sizes of GPT-2 and LLaMA.
#pragma once

#include "tests/kernels/gpu_timer.h"

namespace pp::kernels {

// The two ceilings, a large copy and a large product, then all kernels and products; status 1: one
// of them failed.
int Speed();

// The parts of it: false if a product fails.
bool TimeLargeProduct(GpuTimer& timer);
bool TimeProducts(GpuTimer& timer);

}  // namespace pp::kernels
