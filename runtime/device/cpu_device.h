// The device that is this machine's processors: what is submitted is done at once, on the thread
// that submits it.
#pragma once

#include <memory>

#include "runtime/device/device.h"

namespace pp {

std::unique_ptr<Device> MakeCpuDevice();

}  // namespace pp
