// What the pick depends on: the links of a machine, which differ from cluster to cluster and which
// its description may only suppose. With slower and with faster ones the pick is played again, and
// all plans are searched anew.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "compiler/tune/exact.h"
#include "compiler/tune/tune.h"

namespace pp {

// The fastest plan; nothing if none takes less than `limit` seconds.
using FindFaster = std::function<std::optional<Candidate>(const TuneOptions&, double limit)>;

// Each of what `start` returns is asked by one thread, for options that are these but for the
// machine's links. Error: a deadlock of the pick, which is a bug.
Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options, const Played& pick,
                                              const std::function<FindFaster()>& start);

}  // namespace pp
