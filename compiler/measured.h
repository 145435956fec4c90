// What a run took (piperun --trace) beside what the simulator predicts: pipec simulate --trace.
//
//   steps     the run's complete ones without the first two; the one of median length is shown
//   kinds     each kind of instruction, of the first replica: what the costs say, what it took in
//             the shown step, and its median over all steps and ranks
//   devices   the shown step: busy, and idle before the first compute instruction, between, after
//
// Of messages and reductions the times are the shortest tenth, as they also wait for others; RECVs
// begin long before their messages and are left out.
//
// All times are in seconds.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compiler/simulate.h"
#include "schema/format/timeline.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

struct MeasuredKind {
  Op op;
  int64_t count = 0;                               // in a step
  double predicted = 0, measured = 0, median = 0;  // of one
  // How far the prediction of a step is off because of it, summed over the devices.
  double Off() const { return std::abs(predicted - measured) * static_cast<double>(count); }
};

struct DeviceTimes {
  double busy = 0, warm_up = 0, gaps = 0, drain = 0;
};

struct MeasuredRun {
  int steps = 0;  // that were compared
  int step = 0;   // the shown one
  double fastest = 0, slowest = 0;
  std::vector<MeasuredKind> kinds;   // those that compute first, then predicted worst first
  std::vector<DeviceTimes> devices;  // of the first replica and its first peers
  Prediction shown;                  // that step, as if it were predicted
  // Of costs in T: how long a T is, so that what computes takes as long, together, as was measured.
  // Then only shares and waits are predicted. 0: the costs were in seconds.
  double seconds_per_unit = 0;
};

// REQUIRES: the events are of bodies of `program`. Error: no step is complete, or takes time.
Result<MeasuredRun> Measure(const Program& program, const CostModel& costs,
                            std::span<const Event> events);

// Costs in T as costs in seconds, so that instructions that compute take as long, together, as was
// measured. `seconds_per_unit` is what a T becomes.
CostModel InSeconds(CostModel costs, double seconds_per_unit);
// 0: nothing that is predicted to compute took time.
double SecondsPerUnit(const MeasuredRun& run);

// REQUIRES: the prediction is in seconds. `program`: as predicted.
std::string ToText(const MeasuredRun& run, const Program& program, const Prediction& prediction);
// A member of the prediction's object.
std::string ToJson(const MeasuredRun& run, const Program& program, const Prediction& prediction);

}  // namespace pp
