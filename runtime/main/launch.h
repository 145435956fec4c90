// How this process was started, and how it finds the others of its run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/run/train.h"
#include "schema/status.h"

namespace pp {

// What a launcher (mpiexec, srun) has told this process.
struct Launch {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;  // among those of its host
  bool mpi = false;
};

// From the environment. Invalid: a launcher started several processes without telling them how to
// meet, so that each would train by itself.
Result<Launch> ReadLaunch(const std::string& transport);

// The run that this process is a rank of; without a transport all ranks are threads of this one.
// `status` is what this process knows to be wrong already: the others learn it. `transport` is the
// option. A process that is not joined by all others within `patience` seconds (0: it waits) ends.
Joined JoinRun(const Launch& launch, const std::string& transport, const Status& status,
               double patience);

struct BackendOptions {
  std::string backend, transport;          // the options
  std::shared_ptr<const GemmTable> gemms;  // of --gemms; null: none
};
// What ranks compute on.
struct Backend {
  std::function<std::unique_ptr<Device>(int rank, const DeviceBells&)> make_device;  // null: CPUs
  // Of this process's rank, in the world, if it must be its alone; 0: it need not.
  uint64_t gpu = 0;
  int kernels = 0;  // of NCCL's that run at once on a GPU beside our own streams
};

// CUDA needs its library, and has a GPU for each rank of this host in turn; NCCL needs its own,
// too, and a GPU for each rank.
Result<Backend> OpenBackend(const BackendOptions& options, const Launch& launch);

// Times the products of a plan on this host's first GPU, and writes which algorithms are the
// fastest to a file. What the user should know, in lines.
Result<std::string> TuneGemms(const std::string& plan, const std::string& to);

}  // namespace pp
