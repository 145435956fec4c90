// Through which ports a rank sends.
#pragma once

#include <vector>

#include "runtime/comm/transport.h"
#include "schema/program.h"

namespace pp {

// Of its messages, reductions, tensor-parallel peers, control messages and phases, each once.
// REQUIRES: the program has the rank's list.
std::vector<Port> SendPorts(const Program& program, int rank);

}  // namespace pp
