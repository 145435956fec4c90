#include "runtime/main/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include "runtime/main/environment.h"
#include "runtime/main/siblings.h"

namespace pp {
namespace {

// Those of a process, 0: this one. False: the system does not say.
bool SetOf(int process, cpu_set_t* cores) {
  CPU_ZERO(cores);
  return sched_getaffinity(process, sizeof *cores, cores) == 0;
}

}  // namespace

Cores CoresOf(int ranks_of_process) {
  Cores cores{.ranks = ranks_of_process};
  cpu_set_t mine, all;
  if (!SetOf(0, &mine)) return cores;
  cores.cores = CPU_COUNT(&mine);
  // A launcher that has given each rank cores of its own may itself use more.
  const std::optional<int> launcher = Launcher();
  if (launcher && SetOf(*launcher, &all) && CPU_EQUAL(&mine, &all))
    cores.ranks *= EnvironmentNumber({"MPI_LOCALNRANKS"}).value_or(1);
  return cores;
}

std::string CoresNote(const Cores& cores, int threads_per_rank) {
  const int wanted = threads_per_rank * cores.ranks;
  if (threads_per_rank == 1 || cores.cores == 0 || wanted <= cores.cores) return "";
  return fmt::format(
      "--threads {}: {} compute threads of {} here may use {} of the machine's cores",
      threads_per_rank, wanted, cores.ranks == 1 ? "a rank" : fmt::format("{} ranks", cores.ranks),
      cores.cores);
}

}  // namespace pp
