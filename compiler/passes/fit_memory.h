// The two units of fit-memory's limit.
#pragma once

#include "compiler/pass.h"
#include "compiler/search/problem.h"
#include "compiler/search/search.h"

namespace pp {

// A search of a fixed amount of work may end behind one with less memory. So limits of a fixed grid
// below a given one are searched, too: ten in an octave, 1, 1.1 .. 1.9, 2, 2.2 .. 3.8, 4, of
// activations or of GiB. The largest one that is below.
double LimitBelow(double limit);

// With at most so many cells there is time for more local search.
inline constexpr int kFewCells = 200;

// One search, and the program that it found. REQUIRES: every device has enough memory for its part.
// `effort`: of the local search, if the context wants one.
FitReport FitOnce(Program& program, const PassContext& context, const search::Problem& problem,
                  const search::Effort& effort, double lower_bound);
// Whether each device has enough memory for its part, one micro-batch after the other.
bool HasRoom(const search::Problem& problem);
// The program's order, and those of related schemes that sum gradients in the same order; sorted,
// so that the search is the same whichever of them is the program.
std::vector<search::Plan> StartsOf(const Program& program, const std::vector<Program>& related,
                                   const search::Problem& problem);
// Whether some overlapping pair takes less time than its two instructions one after the other: then
// a search's lower bound does not hold.
bool OverlapSaves(const Program& program, const PassContext& context);
// What the search sees of it, for the context's objective.
search::Problem ProblemOf(const Program& program, const PassContext& context,
                          search::MemoryModel memory);
// The time of its schedule, without that of STEP and reductions: from the first instruction to the
// last, or, for the period, of the device for which that is longest.
double ScheduleTime(const Program& program, const PassContext& context);
// Under a limit in bytes. REQUIRES: a limit for all devices, or one for each.
Status FitBytes(Program& program, const PassContext& context, FitReport* report);

}  // namespace pp
