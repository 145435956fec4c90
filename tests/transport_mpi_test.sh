#!/bin/sh
# The transport suite under mpiexec, also with more ranks than cores: MPI alone, shared memory, and
# both if some ranks are on another host (the second name is this host again, but MPI believes it).
set -eu
for ranks in 2 3 4; do
  timeout 60 mpiexec -n "$ranks" tests/transport_mpi_main "$PWD/runtime" mpi
done
for ranks in 2 4 8; do
  timeout 60 mpiexec -n "$ranks" tests/transport_mpi_main "$PWD/runtime" shm
done
timeout 60 mpiexec -launcher fork -hosts one:2,two:2 -n 4 tests/transport_mpi_main "$PWD/runtime" shm
