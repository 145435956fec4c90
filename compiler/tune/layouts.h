// How devices and a batch divide: the layouts that tune goes through, and what is wrong if there is
// none.
#pragma once

#include <vector>

#include "compiler/tune/tune.h"
#include "schema/base/status.h"

namespace pp {

// All divisors, ascending, or the given one if it is one; 0: none is given.
std::vector<int> Divisors(int of, int given);
// Those of the devices that tensor parallelism may take, likewise: the model's heads and widths
// divide by them, and a node has as many devices.
std::vector<int> LegalPeers(const TuneOptions& options, int given);

// That there is a layout: devices, batch and micro-batch size divide, with what is given. Invalid:
// the first option that does not, with what would.
Status CheckLayouts(const TuneOptions& options);

}  // namespace pp
