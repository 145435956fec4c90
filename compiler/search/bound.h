// What no plan can beat: lower bounds of the makespan under the memory limit, for any
// order of the tasks and any choice of cells to recompute.
//
// A device works in the window W = T - head - tail that the stages before it leave. Its
// micro-batches are alive for at least the time of their way to the last stage and back. So, with n
// recomputes on the device, both its time and its memory x time must fit:
//
//   work          M (F + B) + n R                           <= W
//   memory        (M - n) full L + n (input L + full (R + B)) <= limit W
//
// and, if it has only one stage, two counts of what is alive at one time. The bound is the smallest
// T over n of the device where that is largest.
#pragma once

#include "compiler/search/problem.h"

namespace pp::search {

// Of the makespan.
double LowerBound(const Problem& problem);

}  // namespace pp::search
