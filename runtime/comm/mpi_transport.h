// The transport between processes: MPI, in a shared library of its own beside the program,
// so that a machine without MPI builds and runs everything else.
#pragma once

#include <memory>
#include <string>

#include "runtime/comm/transport.h"

namespace pp {

inline constexpr char kMpiPlugin[] = "libpiperun_mpi.so";
inline constexpr char kMpiEntry[] = "pp_make_mpi_transport";

// What the library exports under kMpiEntry. Null: `error` says why.
using MakeMpiTransport = Transport*(char* error, int error_bytes);

// Loads the library from `directory` and joins the run. Destroying the transport leaves
// it. Invalid: there is no such library, or MPI is too old.
Result<std::unique_ptr<Transport>> JoinMpi(const std::string& directory);

}  // namespace pp
