#!/bin/sh
# The transport suite over MPI, with more ranks than cores, too.
set -eu
for ranks in 2 3 4; do
  timeout 60 mpiexec -n "$ranks" tests/transport_mpi_main "$PWD/runtime"
done
