// The exact level of tune: a candidate compiled, proved to the end and played.
#pragma once

#include <optional>
#include <vector>

#include "compiler/compile.h"
#include "compiler/tune/bounds.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp {

// A plan, to be played with other costs.
struct Played {
  Program plan;                     // without its evaluation
  std::vector<WaitsFor> waits_for;  // from VerifyLists
};

struct Exact {
  double bytes = 0;  // of the device that needs most; where it has not as many, all else is 0
  double seconds = 0, bubble = 0;
  Parts parts;  // they add up to the step; only where the plan is kept
};

// What does not fit is compiled no further. What fits is proved to the end: playing it shows the
// progress. `kept`: the plan, if it is wanted. Nothing: it is illegal.
std::optional<Exact> ExactOf(CompileOptions compile, double memory, Played* kept);

// Of a step of a plan: 6N + 12LCT for each token, but 4 for what is frozen, which has no weight
// gradient.
double ModelOperations(const Program& plan);

}  // namespace pp
