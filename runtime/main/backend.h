// What this process's ranks compute on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/device/cuda/gemm_table.h"
#include "runtime/main/launch.h"
#include "runtime/main/options.h"
#include "schema/model/job.h"
#include "schema/status.h"

namespace pp {

struct BackendOptions {
  std::string backend, transport;          // the options
  std::shared_ptr<const GemmTable> gemms;  // of --gemms; null: none
  bool stochastic_rounding = false;        // --weight-rounding
};
struct Backend {
  std::function<std::unique_ptr<Device>(int rank, const DeviceBells&)> make_device;  // null: CPUs
  // Of this process's rank, in the world, if it must be its alone; 0: it need not.
  uint64_t gpu = 0;
  int kernels = 0;  // of NCCL's that run at once on a GPU beside our own streams
};

// CUDA needs its library, and has a GPU for each rank of this host in turn; NCCL needs its own,
// too, and a GPU for each rank.
Result<Backend> OpenBackend(const BackendOptions& options, const Launch& launch);

// Whether the kernels for GPUs have room for such a model.
Status CheckForCuda(const Job& job);

// Times the products of a plan on this host's first GPU, and writes which algorithms are the
// fastest to the file of --tune-gemms. What the user should know, in lines.
Result<std::string> TuneGemms(const Arguments& arguments);

}  // namespace pp
