// The two units of fit-memory's limit.
#pragma once

#include <optional>

#include "compiler/pass.h"
#include "compiler/search/search.h"

namespace pp {

// One search, and the program as it found it. REQUIRES: every device has room for its part.
// `mario`: a plan that the outcome shall not be slower than, where it fits.
FitReport FitOnce(Program& program, const std::optional<Program>& mario, const PassContext& context,
                  const search::Problem& problem);
// What Mario's four passes make of the program; nothing where they do not apply.
std::optional<Program> MarioPlan(Program program, const PassContext& context);
// Whether some pair that overlaps takes less than one instruction behind the other: then a search's
// lower bound is none.
bool OverlapSaves(const Program& program, const PassContext& context);
// The time of its schedule, without what STEP and reductions take.
double ScheduleMakespan(const Program& program, const PassContext& context);
// Under a limit in bytes. REQUIRES: a limit for all devices, or one for each.
Status FitBytes(Program& program, const PassContext& context, FitReport* report);

}  // namespace pp
