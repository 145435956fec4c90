// Local search: change something at random, build or polish the plan again, keep the change unless
// it is worse by more than chance allows (simulated annealing; Kirkpatrick et al., 1983). Both
// offer what they find to the workbench and return when the budget is used up.
#pragma once

#include "compiler/search/rules.h"
#include "compiler/search/workbench.h"

namespace pp::search {

// Changes rules of single cells, or of some neighbours, and the orders if a device has several
// stages; the dispatcher builds a plan from each. Wide steps: one rule moves much.
void VaryRules(Workbench& bench, Rules rules);

// Changes the best plan itself: drops some kept activations again or moves a task a few places.
// Small steps, also to plans that no rules produce.
void VaryPlan(Workbench& bench);

}  // namespace pp::search
