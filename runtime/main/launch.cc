#include "runtime/main/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/main/environment.h"
#include "runtime/main/print.h"
#include "runtime/main/siblings.h"
#include "runtime/run/deadline.h"

namespace pp {
namespace {

// How long the launcher may take to start the processes of a host one after the other.
constexpr double kMissingSeconds = 3;
// How long the ranks of all hosts may take to start, at least: under load, a machine takes seconds
// for what it otherwise does in milliseconds.
constexpr double kLeastJoiningSeconds = 10;

}  // namespace

Result<Launch> ReadLaunch(const TransportRow& transport) {
  // Set by the launchers of MPICH and Open MPI, and by srun --mpi=pmi2.
  const auto ranks = EnvironmentNumber({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"});
  const auto rank = EnvironmentNumber({"PMI_RANK", "OMPI_COMM_WORLD_RANK"});
  const auto local =
      EnvironmentNumber({"MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"});
  // All that a shell of `srun --pty bash` starts has these variables, too: one process is one
  // alone, and of several, only those that an mpiexec has just started are surely one run.
  const bool alone = ranks.value_or(1) == 1;
  if (!transport.processes && (alone || !Launcher())) return Launch{};
  if (ranks && !(alone && transport.threads))
    return Launch{rank.value_or(0), *ranks, local.value_or(rank.value_or(0)), true};
  const int tasks = EnvironmentNumber({"SLURM_STEP_NUM_TASKS"}).value_or(0);
  if (!ranks && tasks > 1)
    return Status::Invalid(
        fmt::format("--transport: srun started {} processes, each of which would train by itself "
                    "(srun --mpi=pmi2 or mpiexec; --transport threads for runs of their own)",
                    tasks));
  if (!ranks && tasks != 1 && std::getenv("PMIX_RANK") != nullptr)
    return Status::Invalid(
        "--transport: started through PMIx, where each process would train by itself (the mpiexec "
        "of MPICH, or srun --mpi=pmi2; --transport threads for runs of their own)");
  // torchrun, and whoever follows its example.
  const int world = EnvironmentNumber({"WORLD_SIZE"}).value_or(1);
  if (world > 1 && std::getenv("RANK") != nullptr)
    return Status::Invalid(fmt::format(
        "--transport: started as one of WORLD_SIZE={} processes, as by torchrun, each of "
        "which would train by itself (mpiexec; --transport threads for runs of their "
        "own)",
        world));
  return Launch{};
}

Joined JoinRun(const Launch& launch, const TransportRow& transport, const Status& status,
               double patience) {
  Status wrong = status;
  if (wrong.ok() && !transport.processes && launch.ranks > 1)
    wrong = Status::Invalid(
        fmt::format("--transport: '{}' under mpiexec -n {} (shm or mpi, or start without mpiexec)",
                    transport.name, launch.ranks));
  if (wrong.ok() && !transport.threads && !transport.one_process && !launch.mpi)
    wrong = Status::Invalid(fmt::format(
        "--transport: '{}' without mpiexec (mpiexec -n N piperun, or --transport threads)",
        transport.name));
  const bool alone = !launch.mpi && !transport.one_process;
  if (alone || (!launch.mpi && !wrong.ok())) return {.status = wrong};
  const double seconds = patience > 0 ? std::max(patience, kLeastJoiningSeconds) : 0;
  // The lowest rank present reports first: when it ends, mpiexec ends the others.
  Deadline deadline([&] {
    PrintError(Status::Failed(fmt::format(
        "rank {}: not all of {} ranks have started within {} s (each on its host, with the same "
        "piperun)",
        launch.rank, launch.ranks, seconds)));
    std::_Exit(static_cast<int>(Code::kFailed));
  });
  if (seconds > 0) deadline.Set(seconds + 0.3 * std::min(launch.rank, 5));
  std::optional<SiblingWatch> watch;
  if (const auto siblings = EnvironmentNumber({"MPI_LOCALNRANKS"}); siblings && launch.mpi)
    watch.emplace(*siblings, kMissingSeconds + std::min(launch.rank, 5),
                  Status::Failed(fmt::format(
                      "rank {}: a process that mpiexec started beside it has ended without joining "
                      "the {} ranks (all of them piperun, and of one build)",
                      launch.rank, launch.ranks)),
                  [](const Status& why) {
                    PrintError(why);
                    std::_Exit(static_cast<int>(Code::kFailed));
                  });
  Joined joined = JoinMpi(ProgramFolder(), {transport.inside, wrong});
  if (joined.transport && joined.transport->ranks() != launch.ranks)
    return {.status = Status::Invalid(
                fmt::format("--transport: started as one of {} processes, of which MPI joins {} "
                            "(the mpiexec of the MPI that piperun was built with; --transport "
                            "threads for one process alone)",
                            launch.ranks, joined.transport->ranks()))};
  return joined;
}

}  // namespace pp
