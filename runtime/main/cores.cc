#include "runtime/main/cores.h"

#include <fmt/format.h>
#include <sched.h>

#include "runtime/main/environment.h"
#include "runtime/main/siblings.h"

namespace pp {
namespace {

// The cores that a process may use, 0: this one. False: the system does not say.
bool CoresOf(int process, cpu_set_t* cores) {
  CPU_ZERO(cores);
  return sched_getaffinity(process, sizeof *cores, cores) == 0;
}

}  // namespace

std::string CoresNote(const ComputeThreads& threads) {
  cpu_set_t mine, all;
  if (threads.per_rank == 1 || !CoresOf(0, &mine)) return "";
  int ranks = threads.ranks;
  // A launcher that has given each rank cores of its own may itself use more.
  const std::optional<int> launcher = Launcher();
  if (launcher && CoresOf(*launcher, &all) && CPU_EQUAL(&mine, &all))
    ranks *= EnvironmentNumber({"MPI_LOCALNRANKS"}).value_or(1);
  const int wanted = threads.per_rank * ranks, cores = CPU_COUNT(&mine);
  if (wanted <= cores) return "";
  return fmt::format(
      "--threads {}: {} compute threads of {} here may use {} of the machine's cores",
      threads.per_rank, wanted, ranks == 1 ? "a rank" : fmt::format("{} ranks", ranks), cores);
}

}  // namespace pp
