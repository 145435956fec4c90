// Which ranks take part in a collective, and what each of them contributes.
#pragma once

#include <vector>

#include "runtime/plan/collective.h"
#include "schema/program.h"
#include "schema/topology.h"

namespace pp {

// Ranks that hold a copy of a stage, copy number replica * pipes + pipe.
Group CopiesOf(const Program& program, const Topology& topology, int stage, int tp_index);

// Those of rank's list, in its order.
std::vector<CollectiveArgs> BindCollectives(const Program& program, const Topology& topology,
                                            int rank, const Device& memory);

// REQUIRES: `instruction` is a reduction of the list of rank's device; the program is verified.
CollectiveArgs BindCollective(const Program& program, const Topology& topology, int rank,
                              const Instruction& instruction, const Device& memory);

}  // namespace pp
