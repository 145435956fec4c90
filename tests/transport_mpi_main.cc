// One rank of the transport suite over MPI: transport_mpi_main DIRECTORY-OF-THE-LIBRARY.
#include <cstdio>

#include "runtime/comm/mpi_transport.h"
#include "tests/transport_conformance.h"

int main(int, char** argv) {
  auto transport = pp::JoinMpi(argv[1]);
  const pp::Status status = transport.ok() ? pp::CheckTransport(**transport) : transport.status();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return static_cast<int>(status.code());
}
