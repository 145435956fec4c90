// The CUDA backend, and NCCL, each in a separate shared library next to the program, so that a
// program for CPUs neither needs nor loads CUDA, nor one for a single host NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/device/cuda/nccl.h"
#include "runtime/device/device.h"

namespace pp {

inline constexpr char kCudaPlugin[] = "libpiperun_cuda.so";
inline constexpr char kCudaEntry[] = "pp_open_cuda";
inline constexpr char kNcclPlugin[] = "libpiperun_nccl.so";
inline constexpr char kNcclEntry[] = "pp_open_nccl";

struct CudaBackend {
  Status status;               // why there is none
  std::vector<uint64_t> gpus;  // each one's globally unique id, never 0
  // As MakeCudaDevice and TuneGemms.
  std::function<std::unique_ptr<Device>(int gpu, CudaDeviceArgs)> make_device;
  std::function<Result<TunedGemms>(int gpu, const std::vector<kernels::MatmulShape>&,
                                   const CudaExperiments&)>
      tune;
};

struct NcclBackend {
  Status status;  // why there is none
  std::function<std::unique_ptr<Nccl>()> make;
};

// The symbols that the libraries export as kCudaEntry and kNcclEntry.
using OpenCudaEntry = void(CudaBackend* backend);
using OpenNcclEntry = void(NcclBackend* backend);

// Load the library from `directory`, permanently. Invalid: there is none, or no GPU.
CudaBackend OpenCuda(const std::string& directory);
NcclBackend OpenNccl(const std::string& directory);

}  // namespace pp
