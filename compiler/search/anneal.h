// Local search on a plan itself: small changes, each timed exactly, kept unless they are worse by
// more than chance allows (simulated annealing; Kirkpatrick et al., 1983). Most of them are made
// where the plan is critical: on a chain of tasks without a wait from its first to its last, only
// what breaks a block of tasks of one device can make it shorter (Nowicki and Smutnicki, 1996).
#pragma once

#include "compiler/search/cycle.h"
#include "compiler/search/workbench.h"

namespace pp::search {

// Starts from a plan that fits, and offers what it finds, until this much work is done. `cycle`:
// all its copies are changed alike.
void Anneal(Workbench& bench, const Plan& start, int64_t work, const Cycle& cycle = {});

}  // namespace pp::search
