// Communicators that are made when they are first used: the host that needs one stands still until
// the hosts of all its members have come to it. Hosts only enqueue; they wait for nothing else, so
// a device comes to its communicators in list order, and no stream matters here.
//
//   device 0: RECV from 3 ... SEND to 1      0 waits for 3, 3 for 2, 2 for 1, 1 for 0
//   device 1: RECV from 0 ... SEND to 2      (a device's order: its previous neighbour first)
//   device 2: RECV from 1 ... SEND to 3
//   device 3: RECV from 2 ... SEND to 0
//
// Where one communicator carries all messages, it is there, but each direction between two devices
// is connected at its first use, which is the same thing. (That NCCL connects all peers of a group
// at once is not counted on.)
#pragma once

#include "schema/nccl/streams.h"
#include "schema/status.h"

namespace pp::nccl {

// Error: "deadlock: device 0 makes its communicator for '...' (instruction 0) and waits for device
// 3 ..., which waits for ... the first".
Status CheckCreation(const Program& paper, const Traffic& traffic, const Assignment& assignment);

}  // namespace pp::nccl
