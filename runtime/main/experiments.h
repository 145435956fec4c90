// The option --cuda-experiments.
#pragma once

#include "runtime/device/cuda/experiments.h"
#include "runtime/main/options.h"
#include "schema/base/status.h"

namespace pp {

// Invalid: a key or a value is wrong.
Result<CudaExperiments> ParseExperiments(const Arguments& arguments);

}  // namespace pp
