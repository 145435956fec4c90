// The order of collectives: all members of a group start theirs in the same order, as NCCL and MPI
// require. Two in opposite orders would wait for each other forever.
#pragma once

#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// One instruction per member. The k-th of a device belongs to the k-th of the same name on another.
struct Collective {
  Instruction instruction;   // that of the first member
  std::vector<int> members;  // devices, ascending
};

// All collectives of the bodies, and which ones each device starts.
struct Collectives {
  std::vector<Collective> all;
  std::vector<std::vector<int>> started_by;  // device -> indices in `all`, in list order
};
Collectives FindCollectives(const Program& program);

// All of them, in an order that has each device's. REQUIRES: there is one, as the proof has shown.
std::vector<Collective> InOneOrder(Collectives collectives);

// Whether the ranks of all replicas take part, rather than those of one: all of them hold a copy of
// each stage, but the norm is the same for all, unless it has shards (ZeRO-1).
bool IsOverReplicas(const Program& program, Op op);

// What explains a deadlock (Execute finds it: a device does one collective after the other) better
// than its cycle. Error: the two collectives and the two devices that start them in opposite
// orders.
Status FindOppositeOrders(const Program& program);

}  // namespace pp
