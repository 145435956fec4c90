// NCCL itself.
#pragma once

#include <memory>

#include "runtime/device/cuda/nccl.h"

namespace pp {

// For the GPU that the calling thread uses at each call.
std::unique_ptr<Nccl> MakeNccl();

}  // namespace pp
