// Predicts a plan's time and memory: the program played with costs, on a transport.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/transport.h"
#include "compiler/why.h"
#include "schema/base/status.h"
#include "schema/play/execute.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

struct DevicePrediction {
  double busy = 0;              // time in compute instructions
  double share = 1;             // that one of its stages has in a whole device
  double peak_activations = 0;  // most full activations alive, in micro-batches of a whole device
  // The same with what checkpointed forwards keep (costs.in), as a --memory-limit counts it.
  double peak_with_inputs = 0;
  // The arena; without a model what is alive, as the costs have it; 0: not known.
  int64_t peak_bytes = 0;
};

struct Prediction {
  double makespan = 0;  // of a step; if steps overlap, from the end of one to that of the next
  double period = 0;    // from step to step in the steady state, without a common end to wait for
  double bubble = 0;    // 1 - mean busy / makespan
  std::vector<DevicePrediction> devices;
  Execution execution;          // of Unrolled(program)
  std::string_view unit = "T";  // of all times; or s
  std::optional<Why> why;       // if it was asked for
  bool plan_costs = false;      // with the costs that the plan keeps
};

// REQUIRES: `waits_for` from Verify(program) with kPlan. Errors: those of the transport.
Result<Prediction> Simulate(const Program& program, const std::vector<WaitsFor>& waits_for,
                            const CostModel& costs, const NetworkModel& network = {});

// The device and the index, in Unrolled(program), of the instruction that a step ends with.
std::pair<int, size_t> LastInstruction(const Program& program, const Execution& execution);
// A step's makespan, as in Prediction.
double MakespanOf(const Program& program, const Execution& execution);

// What each device holds at most, without its time: it follows from the order of its list alone.
// REQUIRES: `unrolled` is Unrolled(program).
std::vector<DevicePrediction> PeaksOf(const Program& unrolled, const CostModel& costs);

// How long a device computes in a list.
double BusyTime(const std::vector<Instruction>& list, const Durations& durations);

// As `pipec simulate` prints it.
std::string ToText(const Prediction& prediction);
// One object; the name of the plan is in it unless it is empty, and further members.
std::string ToJson(const Prediction& prediction, const std::string& plan = "",
                   const std::string& members = "");

}  // namespace pp
