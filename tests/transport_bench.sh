#!/bin/bash
# Ping-pong and ring through shared memory and through MPI alone, with as many ranks as cores and
# with more.
set -euo pipefail
cd "$(dirname "$0")"
echo "                  ping-pong, us             ring, us"
echo "way        n          8 B       1.5 MB          8 B       1.5 MB"
for ranks in 2 4 8; do
  for way in shm mpi mpi-yield; do
    mpiexec -n "$ranks" ./transport_bench_main "$PWD/../runtime" "$way"
  done
done
