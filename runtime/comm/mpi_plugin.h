// The transport of ranks that mpiexec has started: shared memory inside a host, and MPI between
// hosts. It is in a shared library of its own beside the program, so that a machine without MPI
// builds and runs everything else.
#pragma once

#include <memory>
#include <string>

#include "runtime/comm/transport.h"

namespace pp {

enum class InsideHost : int { kSharedMemory, kMpi };

inline constexpr char kMpiPlugin[] = "libpiperun_mpi.so";
inline constexpr char kMpiEntry[] = "pp_join_mpi";

// What the library exports under kMpiEntry. Null: `error` says why.
using JoinMpiEntry = Transport*(InsideHost inside, char* error, int error_bytes);

// Loads the library from `directory` and joins the run. Destroying the transport leaves
// it. Invalid: there is no such library, MPI is too old, or there is no shared memory.
Result<std::unique_ptr<Transport>> JoinMpi(const std::string& directory, InsideHost inside);

}  // namespace pp
