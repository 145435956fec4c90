// The transport between processes of any hosts: MPI.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// For transfers with `peers`. Destroying it leaves MPI, for this whole process.
// REQUIRES: MPI is initialized, its errors return, and being a peer is mutual.
std::unique_ptr<Transport> MakeMpiTransport(int rank, int ranks, std::vector<int> peers);

// Ends MPI for this process. REQUIRES: all ranks have joined, and nothing is under way.
//
// MPI_Finalize first closes connections to other hosts, and MPICH 4.0 hangs there now and then: one
// rank waits for its peer to answer, the peer waits for it in the process manager's barrier. So the
// process manager is told directly what MPI_Finalize tells it last ("cmd=finalize" of PMI version
// 1, which mpiexec and srun --mpi=pmi2 speak), and the process ends. With other process managers:
// MPI_Finalize.
void LeaveMpi();

}  // namespace pp
