// Programs as pictures and as data for other tools.
#pragma once

#include <string>

#include "schema/execute.h"
#include "schema/program.h"

namespace pp {

// One row a device, one column a unit of time, as schedules are drawn in papers:
//
//   d0 | F0  F1   .   .  B0  --  B1  --
//
// F forward, C checkpointed forward, R recompute, B backward, I and W its halves, then the
// micro-batch; in front the stage, where a device has several. "--" goes on, "." waits.
std::string Grid(const Program& program, const Execution& execution);

// The whole program as one JSON object; the fields are those of README, "Formats".
std::string ShowJson(const Program& program);

}  // namespace pp
