// Ranks that compute nothing: an instruction takes the time that the simulator gives it, asleep. So
// many ranks run on few processors without standing in each other's way, and what a run takes
// beyond its prediction is the runtime's and the transport's.
#pragma once

#include <memory>
#include <vector>

#include "runtime/run/train.h"
#include "schema/cost_model.h"
#include "schema/program.h"

namespace pp {

// Sleeps for `unit` seconds times what `costs` say of the instruction. Losses are 1, and so is the
// gradient's norm. REQUIRES: `program` has a model and outlives the executor.
std::unique_ptr<StageExecutor> MakeSleepingExecutor(const Program& program, const CostModel& costs,
                                                    double unit);

// Makes no more of a run's events than the ends of its steps: of each rank, when it was through
// with the last STEP of each step, in seconds.
std::vector<std::vector<double>> StepEnds(const Program& program, const TrainReport& report);

// Of all ranks and all steps behind `skipped` ones: from the end of a step to that of the next.
// Sorted.
std::vector<double> StepTimes(const Program& program, const TrainReport& report, int skipped);

}  // namespace pp
