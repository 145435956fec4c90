// One device's list, walked once in order: is every value written before it is read, and read once;
// is every accumulator closed before it is used; and what must each instruction wait for? Verifier,
// memory planner, simulator and interpreter all walk with this one function, so that they agree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/memory.h"
#include "schema/semantics/placement.h"
#include "schema/semantics/sums.h"

namespace pp {

// What one list waits for; as long as the list.
//   SEND, RECV, REDUCE: the last compute-lane instruction (an index) that must be over
//     before it may start: the one that wrote what it reads, or that still used the
//     bytes it writes; -1 where there is none.
//   WAIT: the SEND, RECV or REDUCE (an index) that must be over.
//   all others: -1; they only wait for their lane.
using WaitsFor = std::vector<int32_t>;

struct WalkArgs {
  Depth depth = Depth::kLists;
  const Placement* placement = nullptr;  // REQUIRED
  MemoryPolicy* memory = nullptr;        // REQUIRED for kPlan
  const ValueBytes* bytes = nullptr;     // REQUIRED with memory
  WaitsFor* waits_for = nullptr;
  int bodies = 1;  // the list is this many plain bodies, one after the other (Unroll in sections.h)
};

// REQUIRES: fields of all instructions are in range (Load and Parse ensure that).
// Errors say "device D, 'TEXT' (instruction I): what is wrong".
Status WalkList(const Program& program, int device, std::span<const Instruction> list,
                const WalkArgs& args);

}  // namespace pp
