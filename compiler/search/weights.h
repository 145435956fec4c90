// Weight halves placed anew among a plan's other tasks, which keep their order. One goes
//
//   into a wait that is as long as itself        B0 . . . B1 W0  =>  B0 W0 . B1
//   before a task that needs its memory          B0 W0 F2
//   into a shorter wait, so that the next task is late, only where the device would otherwise have
//     waited longer than any other. How much less a device waited in one pass it may wait more in
//     the next.
//
// The rules are those of the ZB-V scheduler of sail-sg's zero-bubble-pipeline-parallelism (Qi et
// al., 2024).
#pragma once

#include <optional>

#include "compiler/search/problem.h"

namespace pp::search {

// The fastest of a few passes; nothing if the other tasks do not fit, or no backward is split.
std::optional<Plan> PlaceWeights(const Problem& problem, const Plan& plan);

}  // namespace pp::search
