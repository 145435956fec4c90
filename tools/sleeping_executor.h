// Ranks that compute nothing: an instruction sleeps for the time that the simulator gives it. Many
// ranks can thus run on few processors without disturbing each other, and what a run takes beyond
// its prediction is the runtime's and the transport's.
#pragma once

#include <memory>
#include <vector>

#include "runtime/run/train.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// Sleeps for `unit` seconds times the cost of the instruction by `costs`. Losses are 1, and so is
// the gradient's norm. REQUIRES: `program` has a model and outlives the executor.
std::unique_ptr<StageExecutor> MakeSleepingExecutor(const Program& program, const CostModel& costs,
                                                    double unit);

// Extracts from a run's events only the ends of its steps: for each rank, when it had finished the
// last STEP of each step, in seconds.
std::vector<std::vector<double>> StepEnds(const Program& program, const TrainReport& report);

// Of all ranks and all steps after `skipped` ones: from the end of a step to that of the next.
// Sorted.
std::vector<double> StepTimes(const Program& program, const TrainReport& report, int skipped);

}  // namespace pp
