// What carries messages between the ranks of a run, by the name that --transport has for it.
#pragma once

#include <string_view>

#include "runtime/comm/mpi_plugin.h"

namespace pp {

struct TransportRow {
  std::string_view name;
  // What the ranks of a run may be: threads of one process, or processes of a launcher (mpiexec,
  // srun), or either, as the run was started.
  bool threads, processes;
  // One process that no launcher has started is a run of processes, of which it is the only one.
  bool one_process;
  InsideHost inside;  // of processes: what their hosts' messages travel by inside a host
  // Messages are work of NCCL's streams, on GPUs: which messages share a stream follows from the
  // plan's proof (schema/nccl/prove.h).
  bool nccl;
  bool can_be_slowed;  // by --net
};

// An unknown one is `auto`'s: all ranks must meet to hear of the error.
const TransportRow& TransportOf(std::string_view name);

}  // namespace pp
