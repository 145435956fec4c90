#include "runtime/main/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <system_error>
#include <utility>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/device/cuda/cuda_plugin.h"
#include "runtime/model/products.h"
#include "runtime/run/deadline.h"
#include "schema/disk.h"
#include "schema/file.h"

namespace pp {
namespace {

// CUDA's hardware queues, which streams share in turn, and the most of them.
constexpr char kConnections[] = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kMostConnections = 32;

std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view digits = text;
    int number = 0;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
    if (error == std::errc() && end == digits.end()) return number;
  }
  return std::nullopt;
}

// Its libraries lie beside the program.
std::string ProgramFolder() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : program.parent_path().string();
}

}  // namespace

Result<Launch> ReadLaunch(const std::string& transport) {
  // MPICH's and Open MPI's launchers leave these, and srun --mpi=pmi2.
  const auto ranks = EnvironmentNumber({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"});
  const auto rank = EnvironmentNumber({"PMI_RANK", "OMPI_COMM_WORLD_RANK"});
  const auto local =
      EnvironmentNumber({"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"});
  if (ranks) return Launch{rank.value_or(0), *ranks, local.value_or(rank.value_or(0)), true};
  if (transport == "threads") return Launch{};  // somebody wants several runs
  const int tasks = EnvironmentNumber({"SLURM_STEP_NUM_TASKS"}).value_or(1);
  if (tasks > 1)
    return Status::Invalid(
        fmt::format("--transport: srun started {} processes, each of which would train by itself "
                    "(srun --mpi=pmi2 or mpiexec; --transport threads for runs of their own)",
                    tasks));
  if (std::getenv("PMIX_RANK") != nullptr)
    return Status::Invalid(
        "--transport: started through PMIx, where each process would train by itself (the mpiexec "
        "of MPICH, or srun --mpi=pmi2; --transport threads for runs of their own)");
  return Launch{};
}

Joined JoinRun(const Launch& launch, const std::string& transport, const Status& status,
               double patience) {
  Status wrong = status;
  if (wrong.ok() && transport == "threads" && launch.ranks > 1)
    wrong = Status::Invalid(
        fmt::format("--transport: 'threads' under mpiexec -n {} (shm or mpi, or start without "
                    "mpiexec)",
                    launch.ranks));
  if (wrong.ok() && transport == "shm" && !launch.mpi)
    wrong = Status::Invalid(
        "--transport: 'shm' without mpiexec (mpiexec -n N piperun, or --transport threads)");
  if (wrong.ok() && transport == "nccl" && !launch.mpi)
    wrong = Status::Invalid(
        "--transport: 'nccl' without mpiexec (mpiexec -n N piperun, or --transport threads)");
  const bool alone = !launch.mpi && transport != "mpi";
  if (alone || (!launch.mpi && !wrong.ok())) return {.status = wrong};
  // The first rank that is there speaks: when it ends, mpiexec ends the others.
  const Deadline deadline(patience > 0 ? patience + std::min(launch.rank, 5) : 0, [&] {
    fmt::print(stderr,
               "piperun: error: rank {}: not all of {} ranks have started within {} s (each on "
               "its host, with the same piperun)\n",
               launch.rank, launch.ranks, patience);
    std::_Exit(static_cast<int>(Code::kFailed));
  });
  Joined joined = JoinMpi(
      ProgramFolder(), {transport == "mpi" ? InsideHost::kMpi : InsideHost::kSharedMemory, wrong});
  if (joined.transport && joined.transport->ranks() != launch.ranks)
    return {.status = Status::Invalid(
                fmt::format("--transport: started as one of {} processes, of which MPI joins {} "
                            "(the mpiexec of the MPI that piperun was built with)",
                            launch.ranks, joined.transport->ranks()))};
  return joined;
}

Result<Backend> OpenBackend(const BackendOptions& options, const Launch& launch) {
  if (options.backend != "cuda") return Backend();
  const bool by_nccl = options.transport == "nccl";
  if (by_nccl) {
    // What is loaded when it is first used would wait for NCCL's kernels, which wait for other
    // ranks; and what shares one of CUDA's hardware queues waits for what is before it.
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv(kConnections, std::to_string(kMostConnections).c_str(), 0);
  }
  CudaBackend cuda = OpenCuda(ProgramFolder());
  PP_RETURN_IF_ERROR(cuda.status);
  NcclBackend nccl;
  if (by_nccl) {
    nccl = OpenNccl(ProgramFolder());
    PP_RETURN_IF_ERROR(nccl.status);
  }
  const size_t gpus = cuda.gpus.size();
  Backend made;
  if (by_nccl) {
    made.gpu = cuda.gpus[launch.local_rank % gpus];
    made.kernels =
        EnvironmentNumber({kConnections}).value_or(kMostConnections) - kCudaDeviceStreams;
  }
  made.make_device = [cuda = std::move(cuda), nccl = std::move(nccl), gemms = options.gemms, launch,
                      gpus](int rank, const DeviceBells& bells) {
    const int local = launch.mpi ? launch.local_rank : rank;
    return cuda.make_device(
        local % static_cast<int>(gpus),
        {.bells = bells, .nccl = nccl.make ? nccl.make() : nullptr, .gemms = gemms});
  };
  return made;
}

Result<std::string> TuneGemms(const std::string& plan, const std::string& to) {
  const Result<Program> program = Load(plan);
  PP_RETURN_IF_ERROR(program.status());
  PP_RETURN_IF_ERROR(CheckRunnable(*program, plan, 0));
  std::error_code error;
  if (std::filesystem::equivalent(plan, to, error))
    return Status::Invalid(fmt::format("--tune-gemms: {} is the plan (another file)", to));
  const CudaBackend cuda = OpenCuda(ProgramFolder());
  PP_RETURN_IF_ERROR(cuda.status);
  const Result<TunedGemms> tuned = cuda.tune(0, AllProducts(*program->job));
  PP_RETURN_IF_ERROR(tuned.status());
  const std::string text = tuned->table.Print();
  const std::string_view parts[] = {text};
  PP_RETURN_IF_ERROR(WriteWhole(to, parts).In("--tune-gemms"));
  return fmt::format("{}\nwritten to {}\n", fmt::join(tuned->lines, "\n"), to);
}

}  // namespace pp
