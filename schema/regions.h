// Memory that a device holds from the first step to the last: what plan-memory lays out and
// the verifier asks for.
#pragma once

#include <vector>

#include "schema/program.h"

namespace pp {

// Weights, their gradients and moments for each stage that the device holds, then what its
// stages share; one behind the other from offset 0, at multiples of kAlign. None without a
// model.
std::vector<Region> RegionsOf(const Program& program, int device);

}  // namespace pp
