// The transport of ranks that mpiexec has started: shared memory inside a host, and MPI between
// hosts. It is in a separate shared library next to the program, so that a machine without MPI
// builds and runs everything else.
#pragma once

#include <memory>
#include <string>

#include "runtime/comm/transport.h"

namespace pp {

enum class InsideHost : int { kSharedMemory, kMpi };

inline constexpr char kMpiPlugin[] = "libpiperun_mpi.so";
inline constexpr char kMpiEntry[] = "pp_join_mpi";

struct JoinMpiArgs {
  InsideHost inside = InsideHost::kSharedMemory;  // the same on all ranks
  Status status;                                  // an error, and no rank joins
};

struct Joined {
  std::unique_ptr<Transport> transport;
  // Why there is none: the error of the first rank that has one, on all ranks, if they are
  // connected; else this process's own.
  Status status;
  bool connected = false;
};

// What the library exports under kMpiEntry.
using JoinMpiEntry = void(const JoinMpiArgs& args, Joined* joined);

// Loads the library from `directory` and joins the run. Destroying the transport leaves it; then
// the process should end by _Exit, without what MPI does at an ordinary exit. Invalid: there is no
// such library, MPI is too old, or there is no shared memory.
Joined JoinMpi(const std::string& directory, const JoinMpiArgs& args);

}  // namespace pp
