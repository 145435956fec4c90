// Which ranks take part in a collective, and what each of them contributes.
#pragma once

#include "runtime/plan/collective.h"
#include "schema/program.h"
#include "schema/topology.h"

namespace pp {

// Ranks that hold a copy of a stage, copy number replica * pipes + pipe.
Group CopiesOf(const Program& program, const Topology& topology, int stage, int tp_index);

// REQUIRES: `instruction` is a reduction of the list of rank's device; the program is verified.
CollectiveArgs BindCollective(const Program& program, const Topology& topology, int rank,
                              const Instruction& instruction, const Device& memory);

}  // namespace pp
