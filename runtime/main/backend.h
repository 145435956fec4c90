// The devices that this process's ranks compute on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/cuda/experiments.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/main/launch.h"
#include "runtime/main/options.h"
#include "schema/base/status.h"
#include "schema/model/job.h"

namespace pp {

struct BackendOptions {
  std::string backend;                     // the option
  bool nccl = false;                       // messages go over NCCL
  std::shared_ptr<const GemmTable> gemms;  // of --gemms; null: none
  bool stochastic_rounding = false;        // --weight-rounding
  CudaExperiments experiments;             // --cuda-experiments
};
struct Backend {
  std::function<std::unique_ptr<Device>(int rank, const DeviceBells&)> make_device;  // null: CPUs
  // If no two ranks may share a GPU: identifies that of this process's rank among all hosts. Else
  // 0.
  uint64_t gpu = 0;
  int gpus = 0;    // of this host
  int queues = 0;  // with NCCL: hardware queues of a GPU, for each process
};

// CUDA needs its plugin, and assigns the GPUs of a host to its ranks in turn; NCCL also needs its
// own plugin, and one GPU per rank, unless the environment tells it to do without
// (NCCL_MULTI_RANK_GPU_ENABLE, from NCCL 2.30 on).
Result<Backend> OpenBackend(const BackendOptions& options, const Launch& launch);

// Invalid: the model exceeds a limit of the kernels for GPUs.
Status CheckForCuda(const Job& job);

// Times the matrix products of a plan on this host's first GPU, and writes the fastest algorithms
// to the file of --tune-gemms. Returns a report for the user, in lines.
Result<std::string> TuneGemms(const Arguments& arguments, const CudaExperiments& experiments);

}  // namespace pp
