// The transport between ranks that are threads of one process. Whoever comes second to a transfer
// copies the bytes, directly from one rank's memory to the other's.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/transport.h"

namespace pp {

// One end for each rank. They may be destroyed in any order, but only when no thread uses
// any of them.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int ranks);

}  // namespace pp
