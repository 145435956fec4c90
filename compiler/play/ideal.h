// The ideal timeline of a compute-only program: when each instruction would run if messages needed
// no place in the lists. Passes that place messages or move instructions use it; schemes never do.
#pragma once

#include <vector>

#include "compiler/play/messages.h"
#include "schema/cost_model.h"
#include "schema/execute.h"
#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// How long an instruction, or two that overlap, occupy the compute lane; a reduction only starts
// there.
double ComputeTime(const std::vector<Instruction>& list, size_t index, const Durations& durations);

// Costs that are never 0 for an instruction that computes, so that the order of a timeline is the
// order of time.
CostModel PositiveCosts(const CostModel& costs);
Durations PositiveDurations(const CostModel& costs, const Program& program);

// By device and instruction: when it runs.
using Spans = std::vector<std::vector<Span>>;

// Error: "deadlock: ..." if the lists wait for one another in a cycle.
Result<Spans> IdealTimeline(const Program& program, const std::vector<Message>& messages,
                            const Durations& durations);

// That devices that followed the bodies of `program` are at their ends, else that error.
Status CheckEnded(const Program& program, const Follower& follower);

}  // namespace pp
