// What the pick depends on: the links of a machine, which differ from cluster to cluster and which
// its description may only suppose.
//
//   time        of the pick
//     |  \            .'
//     |    \        .'            a slower link: T grows, and no plan can be faster than the best
//     |      ` - . _              one with the link as it is; where T is within the error of that,
//     +-----|-----|--------- link     nothing changes, and elsewhere the search answers
//          1/4    1
#pragma once

#include <vector>

#include "compiler/tune/tune.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp {

// `plan` with its `waits_for` from VerifyLists; `fastest`: seconds of the fastest with the machine
// as it is. Error: a deadlock of the plan, which is a bug.
Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options, const Program& plan,
                                              const std::vector<WaitsFor>& waits_for,
                                              double fastest);

}  // namespace pp
