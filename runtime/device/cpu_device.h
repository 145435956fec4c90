// The device that consists of this machine's processors: what is submitted is done immediately, on
// the submitting thread.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace pp {

std::unique_ptr<Device> MakeCpuDevice();

}  // namespace pp
