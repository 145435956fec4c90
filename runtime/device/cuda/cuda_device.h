// The device that is an NVIDIA GPU, or a part of one: memory, streams and the kernels of
// //kernels:cuda, over a driver.
//
// What a lane submits goes into its stream, with an event after each piece of work. A thread of the
// device's own looks for events that are reached, passes on what copies have brought to the host,
// and rings.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/experiments.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/device/cuda/nccl.h"
#include "runtime/device/device.h"

namespace pp {

// The device's own streams, in addition to those of NCCL's communicators.
inline constexpr int kCudaDeviceStreams = 6;

struct CudaDeviceArgs {
  DeviceBells bells;
  std::shared_ptr<Nccl> nccl;  // null: ranks that share communicators cannot be reached
  // From a file, for a machine like this one (otherwise the device has an error); null: none.
  std::shared_ptr<const GemmTable> gemms;
  bool stochastic_rounding = false;  // of bf16 jobs' weights for products
  CudaExperiments experiments;       // also the driver's
  // Tells the user, on the thread that makes kernels.
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

// Driver and NCCL are used by the device and the transports that it makes alone. Throws
// std::system_error if the system has no thread left.
std::unique_ptr<Device> MakeCudaDevice(std::unique_ptr<CudaDriver> driver, CudaDeviceArgs args);

}  // namespace pp
