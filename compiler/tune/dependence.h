// What the pick depends on: the links of a machine, which differ from cluster to cluster and which
// its description may only suppose. The pick is played with slower and faster ones beside the best
// plan of each other layout.
#pragma once

#include <string_view>
#include <vector>

#include "compiler/machine/machine.h"
#include "compiler/tune/exact.h"
#include "compiler/tune/tune.h"

namespace pp {

struct Rival {
  Candidate candidate;
  Played played;
};

// REQUIRES: the first rival is the pick. Error: a deadlock of a plan, which is a bug.
Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options,
                                              std::vector<Rival> rivals);

}  // namespace pp
