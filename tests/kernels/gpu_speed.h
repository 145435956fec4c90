// How fast kernels and products are on a real GPU, at the sizes of GPT-2 and LLaMA.
#pragma once

#include "tests/kernels/gpu_timer.h"

namespace pp::kernels {

// The two ceilings, a large copy and a large product, then all kernels; status 1: the product
// failed.
enum class Timed { kCeilings, kAll };
int Speed(Timed what);

// A part of it: false if the product fails.
bool TimeLargeProduct(GpuTimer& timer);

}  // namespace pp::kernels
