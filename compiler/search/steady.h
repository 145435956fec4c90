// Plans for many more micro-batches than devices: a few of them are planned, under the limits and
// under lower ones; where such a plan comes back to where it was, that period is repeated; and then
// local search changes all periods alike, which costs no more for a thousand micro-batches.
#pragma once

#include <vector>

#include "compiler/search/problem.h"

namespace pp::search {

// Whether there are enough micro-batches for it, on few enough devices.
bool HasSteadyState(const Problem& problem);

// Plans that fit, at most as many as are worth polishing. `starts`: the scheme's order, and perhaps
// others with the same work; `fastest`: one of them. `share`: of the usual work. REQUIRES:
// HasSteadyState; no device's limit is below SmallestLimits.
std::vector<Plan> SteadyPlans(const Problem& problem, const std::vector<Plan>& starts,
                              const Plan& fastest, double share);

}  // namespace pp::search
