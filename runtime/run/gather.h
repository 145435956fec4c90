// After the last step: collects at rank 0 what the ranks recorded.
#pragma once

#include <vector>

#include "runtime/comm/phase.h"
#include "runtime/plan/recorder.h"
#include "runtime/record/values.h"

namespace pp {

// Each rank brings its own times, events and records. Rank 0 gets those of all ranks, in rank
// order, the events on its own clock. Every rank must call it, as a phase's work (comm/phase.h).
Status GatherReports(Exchange& exchange, std::vector<TimeSpent>* time, std::vector<Event>* events,
                     std::vector<ValueRecord>* records);

}  // namespace pp
