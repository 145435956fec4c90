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
// T over n of the device where that is largest, or what one device alone needs (one_device.h).
#pragma once

#include "compiler/search/problem.h"

namespace pp::search {

// Of the makespan less its lead: of a step, or after AimAtPeriod of the time from step to step,
// where what is before a device's first task and after its last one does not count.
double LowerBound(const Problem& problem);

}  // namespace pp::search
