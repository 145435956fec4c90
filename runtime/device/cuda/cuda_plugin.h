// The CUDA backend, in a shared library of its own beside the program, so that a program for CPUs
// neither needs nor loads CUDA.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/device/device.h"

namespace pp {

inline constexpr char kCudaPlugin[] = "libpiperun_cuda.so";
inline constexpr char kCudaEntry[] = "pp_open_cuda";

struct CudaBackend {
  Status status;  // why there is none
  int gpus = 0;
  std::function<std::unique_ptr<Device>(int gpu, const DeviceBells&)> make_device;
};

// What the library exports under kCudaEntry.
using OpenCudaEntry = void(CudaBackend* backend);

// Loads the library from `directory`, for good. Invalid: there is none, or no GPU.
CudaBackend OpenCuda(const std::string& directory);

}  // namespace pp
