// After the last step: what the ranks recorded comes together at rank 0.
#pragma once

#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/compare/values.h"
#include "runtime/plan/recorder.h"

namespace pp {

// Each rank brings its own times, events and records. Rank 0 leaves with those of all ranks, in
// rank order, the events on its own clock; all leave with rank 0's *good. Every rank must call it.
Status GatherReports(Transport& transport, std::vector<TimeSpent>* time, std::vector<Event>* events,
                     std::vector<ValueRecord>* records, bool* good);

}  // namespace pp
