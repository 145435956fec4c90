// How wrong the costs of what crosses links may be before a plan is not the fastest any more.
#pragma once

#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp {

// Factors up to kMostDrift by which these times, each kind alone, can grow while the plan still
// takes at most a given time: the largest, or slightly less.
inline constexpr double kMostDrift = 64;
struct Drift {
  double messages = kMostDrift, reductions = kMostDrift;
};

// REQUIRES: `waits_for` from Verify(plan) with kPlan; steps do not overlap; with its own costs the
// plan takes at most `seconds`.
Result<Drift> DriftUntil(const Program& plan, const std::vector<WaitsFor>& waits_for,
                         double seconds);

}  // namespace pp
