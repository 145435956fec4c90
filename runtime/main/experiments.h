// The option --cuda-experiments.
#pragma once

#include "runtime/device/cuda/experiments.h"
#include "runtime/main/options.h"
#include "schema/base/status.h"

namespace pp {

// Invalid: a key, a value or the backend is wrong.
Result<CudaExperiments> ParseExperiments(const Arguments& arguments);

}  // namespace pp
