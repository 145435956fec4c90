// Stalls: an operation waits only because another one is before it in its stream, although its data
// and its partner are ready.
//
// If flows share a stream, with b after a, there is no stall if b always comes later than a anyway:
// if what a needs is over whenever what b needs is, however long anything takes. At each of its
// ends, a needs a certain place in that device's compute lane (End::after); so this is a question
// of reachability in the graph of the lists with each flow of messages in a stream of its own, and
// all collectives in another. Streams without stalls add nothing to that graph, and so no deadlock
// either.
//
// A collective that waits for its members, or for those before it in the lists, does what the plan
// says: that is no stall. A message that waits behind a collective is one, unless a WAIT for the
// collective precedes what it needs.
#pragma once

#include <vector>

#include "schema/nccl/communicators.h"

namespace pp::nccl {

struct Stall {
  int32_t carrier = -1;
  int32_t waits = -1, behind = -1;  // ends of one device
};

// The first stall of each carrier that has one, in their order.
std::vector<Stall> FindStalls(const Traffic& traffic, const Streams& streams);

}  // namespace pp::nccl
