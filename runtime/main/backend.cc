#include "runtime/main/backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "kernels/norm.h"
#include "runtime/device/attention_shape.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/main/environment.h"
#include "runtime/model/products.h"
#include "schema/base/disk.h"
#include "schema/format/file.h"
#include "schema/nccl/queues.h"

namespace pp {
namespace {

// The number of CUDA's hardware queues, which streams are assigned to in turn.
constexpr char kConnections[] = "CUDA_DEVICE_MAX_CONNECTIONS";
static_assert(kCudaDeviceStreams + 1 == nccl::kOwnStreams);  // and the default stream

// At least what one communicator needs; whether they suffice is for the plan's proof to say.
Result<int> HardwareQueues() {
  constexpr int kLeast = nccl::kOwnStreams + 1 + nccl::kNcclStreams;
  const char* text = std::getenv(kConnections);
  const auto connections = EnvironmentNumber({kConnections});
  if (text == nullptr) return nccl::kMostQueues;
  if (!connections || *connections < kLeast || *connections > nccl::kMostQueues)
    return Status::Invalid(fmt::format(
        "{}: '{}' with --transport nccl ({} to {}, which piperun sets where it is not set)",
        kConnections, Shown(text), kLeast, nccl::kMostQueues));
  return *connections;
}

}  // namespace

Result<Backend> OpenBackend(const BackendOptions& options, const Launch& launch) {
  if (options.backend != "cuda") return Backend();
  const Result<int> queues = options.nccl ? HardwareQueues() : 0;
  PP_RETURN_IF_ERROR(queues.status());
  // Work in one hardware queue waits for what was submitted to it before.
  setenv(kConnections, std::to_string(nccl::kMostQueues).c_str(), 0);
  // A kernel that is loaded at its first use would wait for NCCL's kernels, which wait for other
  // ranks.
  if (options.nccl) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  CudaBackend cuda = OpenCuda(ProgramFolder());
  PP_RETURN_IF_ERROR(cuda.status);
  NcclBackend nccl;
  if (options.nccl) {
    nccl = OpenNccl(ProgramFolder());
    PP_RETURN_IF_ERROR(nccl.status);
  }
  const size_t gpus = cuda.gpus.size();
  Backend made{.gpus = static_cast<int>(gpus), .queues = *queues};
  if (options.nccl && EnvironmentNumber({"NCCL_MULTI_RANK_GPU_ENABLE"}).value_or(0) == 0)
    made.gpu = cuda.gpus[launch.local_rank % gpus];
  made.make_device = [cuda = std::move(cuda), nccl = std::move(nccl), options, launch, gpus](
                         int rank, const DeviceBells& bells) {
    const int local = launch.mpi ? launch.local_rank : rank;
    CudaDeviceArgs args{.bells = bells,
                        .nccl = nccl.make ? nccl.make() : nullptr,
                        .gemms = options.gemms,
                        .stochastic_rounding = options.stochastic_rounding,
                        .experiments = options.experiments};
    if (rank == 0) args.note = [](const std::string& note) { std::cout << note << std::endl; };
    return cuda.make_device(local % static_cast<int>(gpus), std::move(args));
  };
  return made;
}

Status CheckForCuda(const Job& job) {
  const auto check = [](const char* what, int64_t size, int64_t most) {
    if (size <= most) return Status();
    return Status::Invalid(
        fmt::format("{} of {} numbers with --backend cuda (at most {})", what, size, most));
  };
  PP_RETURN_IF_ERROR(check("heads", AttentionShapeOf(job).head_dim, kernels::cuda::kMostHeadDim));
  return check("hidden states", job.model.hidden_size, kernels::cuda::kMostChannels);
}

Result<std::string> TuneGemms(const Arguments& arguments, const CudaExperiments& experiments) {
  const std::string &plan = arguments.train.plan, &to = arguments.train.tune_gemms;
  const Result<Program> program = Load(plan);
  PP_RETURN_IF_ERROR(program.status());
  PP_RETURN_IF_ERROR(CheckRunnable(*program, plan, 0));
  for (const std::string& input : InputPaths(arguments)) {
    std::error_code error;
    if (std::filesystem::equivalent(input, to, error))
      return Status::Invalid(
          fmt::format("--tune-gemms: {} is an input of this run (another file)", to));
  }
  const CudaBackend cuda = OpenCuda(ProgramFolder());
  PP_RETURN_IF_ERROR(cuda.status);
  const Result<TunedGemms> tuned = cuda.tune(0, AllProducts(*program->job), experiments);
  PP_RETURN_IF_ERROR(tuned.status());
  const std::string text = tuned->table.Print();
  const std::string_view parts[] = {text};
  PP_RETURN_IF_ERROR(WriteWhole(to, parts).In("--tune-gemms"));
  return fmt::format("{}\nwritten to {}\n", fmt::join(tuned->lines, "\n"), to);
}

}  // namespace pp
