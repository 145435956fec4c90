// The ideal timeline of a compute-only program: when each instruction would run if messages needed
// no place in the lists, and weight halves put where a device would wait on it.
#pragma once

#include <vector>

#include "compiler/play/messages.h"
#include "schema/base/status.h"
#include "schema/play/execute.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

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
double MakespanOf(const Spans& spans);

// `messages`: of `program`, as FindMessages gives them. Error: "deadlock: ..." if the lists wait
// for one another in a cycle.
Result<Spans> IdealTimeline(const Program& program, const std::vector<Message>& messages,
                            const Durations& durations);

struct WeightFill {
  int most_alive;       // activations on a device, where weight halves can help that
  double least_bubble;  // a bubble must be at least this much of a weight half long to take it
};
struct FilledLists {
  std::vector<std::vector<Instruction>> lists;  // by device
  double makespan = 0;
};

// Puts weight halves into lists that have forwards and input halves only, none of which overlap: a
// device that would wait, or that has no memory left for its next forward, runs its oldest weight
// half. Error: as above.
Result<FilledLists> FillWeights(const Program& program, const std::vector<Message>& messages,
                                const Durations& durations, const WeightFill& fill);

}  // namespace pp
