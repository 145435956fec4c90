// Local search on rules: change some at random, build and polish the plan again, keep the change
// unless it is worse by more than chance allows. Wide steps: one rule moves much. (anneal.h takes
// small ones, on the plan itself.)
#pragma once

#include "compiler/search/rules.h"
#include "compiler/search/workbench.h"

namespace pp::search {

// Changes rules of single cells, or of some neighbours, and the orders if a device has several
// stages; the dispatcher builds a plan from each. Offers what it finds to the workbench until the
// allowed work is done. Returns the fastest plan that these rules have led to, which may be slower
// than the workbench's; that one, if they have led to none.
Plan VaryRules(Workbench& bench, Rules rules);

}  // namespace pp::search
