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

// What explains a deadlock (Execute finds it: a device does one collective after the other) better
// than its cycle. Error: the two collectives and the two devices that start them in opposite
// orders.
Status FindOppositeOrders(const Program& program);

}  // namespace pp
