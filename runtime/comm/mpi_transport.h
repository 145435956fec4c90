// The transport between processes of any hosts: MPI.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// For transfers with `peers`. Destroying it leaves MPI, for this whole process.
// REQUIRES: MPI is initialized, its errors return, and who has whom as a peer is mutual.
std::unique_ptr<Transport> MakeMpiTransport(int rank, int ranks, std::vector<int> peers);

}  // namespace pp
