// NCCL itself.
#pragma once

#include <memory>

#include "runtime/device/cuda/nccl.h"

namespace pp {

// On the GPU that the calling thread uses, each time.
std::unique_ptr<Nccl> MakeNccl();

}  // namespace pp
