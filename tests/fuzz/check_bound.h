// Whether all that a plan is bound to lies in the arena, by the sizes that its kernels believe.
#pragma once

#include "runtime/plan/binding.h"
#include "schema/topology.h"
#include "tests/fuzz/exact_device.h"

namespace pp {

// Stops the process if a call, a message or a freed value reaches beyond the arena, or if an
// instruction has no address for what it reads or writes.
void CheckBound(const Program& program, int device, const BoundList& bound,
                const ExactDevice& memory);

// The same for the collectives of a rank.
void CheckCollectives(const Program& program, const Topology& topology, int rank,
                      const ExactDevice& memory);

}  // namespace pp
