// One rank of the transport suite: transport_mpi_main DIRECTORY-OF-THE-LIBRARY shm|mpi.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "runtime/comm/mpi_plugin.h"
#include "tests/transport_conformance.h"

int main(int, char** argv) {
  const bool mpi = std::string(argv[2]) == "mpi";
  pp::Joined joined = pp::JoinMpi(
      argv[1], {mpi ? pp::InsideHost::kMpi : pp::InsideHost::kSharedMemory, pp::Status()});
  const pp::Status status =
      joined.status.ok() ? pp::CheckTransport(*joined.transport) : joined.status;
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  joined.transport.reset();
  std::_Exit(static_cast<int>(status.code()));  // see JoinMpi
}
