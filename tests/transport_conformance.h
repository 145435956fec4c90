// What every transport must do. Each rank of a run calls CheckTransport at the same time, on a
// thread or in a separate process.
#pragma once

#include "runtime/comm/transport.h"
#include "schema/base/status.h"

namespace pp {

// The first thing that is wrong, or OK.
Status CheckTransport(Transport& transport);

}  // namespace pp
