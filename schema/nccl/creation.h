// Communicators that are created at their first use: the host that needs one blocks until the hosts
// of all its members have reached it. Hosts only enqueue; they wait for nothing else, so a device
// reaches its communicators in list order, and streams do not matter here.
//
//   device 0: RECV from 3 ... SEND to 1      0 waits for 3, 3 for 2, 2 for 1, 1 for 0
//   device 1: RECV from 0 ... SEND to 2      (a device's order: its previous neighbour first)
//   device 2: RECV from 1 ... SEND to 3
//   device 3: RECV from 2 ... SEND to 0
//
// A single communicator for all messages exists from the start, but each direction between two
// devices is connected at its first use, which comes to the same thing. (We do not rely on NCCL
// connecting all peers of a group together.)
#pragma once

#include "schema/base/status.h"
#include "schema/nccl/communicators.h"

namespace pp::nccl {

// Error: "where communicators are made at their first use: deadlock: device 0 '...' (instruction 0)
// waits to be matched by device 3 ..., which ... the first".
Status CheckCreation(const Program& unrolled, const Traffic& traffic, const Assignment& assignment);

}  // namespace pp::nccl
