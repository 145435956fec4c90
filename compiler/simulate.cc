#include "compiler/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "compiler/period.h"
#include "schema/sections.h"

namespace pp {
namespace {

// On one device it follows from the order of the list alone.
double PeakActivations(const Program& program, int device) {
  const std::vector<int32_t> held = program.StagesOf(device);
  const double share = held.empty() ? 1 : program.Shares()[held.front()];
  int alive = 0, peak = 0;
  for (const Instruction& i : program.lists[device].body) {
    alive += ActivationChange(i.op);
    peak = std::max(peak, alive);
  }
  return peak * share;
}

double BusyTime(const std::vector<Instruction>& list, const Durations& durations) {
  double busy = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].overlap) {
      busy += durations.Pair(list[i], list[i + 1]);
      ++i;
    } else if (Info(list[i].op).lane == Lane::kCompute) {
      busy += durations(list[i]);
    }
  }
  return busy;
}

// If steps overlap: from the end of the first body to that of the second, in the steady state.
double OverlappingPeriod(const Program& program, const Execution& unrolled) {
  double period = 0;
  for (int d = 0; d < program.devices; ++d) {
    const size_t body = program.lists[d].body.size();
    const size_t first = program.lists[d].prologue.size() + body - 1;
    if (body > 0)
      period = std::max(period, unrolled.spans[d][first + body].end - unrolled.spans[d][first].end);
  }
  return period;
}

}  // namespace

Result<Prediction> Simulate(const Program& program, const std::vector<WaitsFor>& waits_for,
                            const CostModel& costs) {
  Prediction prediction;
  const bool overlaps = HasSections(program);
  std::optional<Program> unrolled;
  if (overlaps) unrolled = OnPaper(program);
  const Program& paper = overlaps ? *unrolled : program;
  PP_RETURN_IF_ERROR(Execute(paper, waits_for, costs, &prediction.execution));
  prediction.makespan =
      overlaps ? OverlappingPeriod(program, prediction.execution) : prediction.execution.makespan;
  prediction.period = prediction.makespan;
  if (!overlaps && !program.clip) {
    const auto period = SteadyPeriod(program, costs);
    if (!period.ok()) return period.status();
    prediction.period = *period;
  }
  const Durations durations(costs, program);
  double busy = 0;
  for (int d = 0; d < program.devices; ++d) {
    DevicePrediction& device = prediction.devices.emplace_back();
    device.busy = BusyTime(program.lists[d].body, durations);
    device.peak_activations = PeakActivations(paper, d);
    if (program.job) device.peak_bytes = program.lists[d].arena_bytes;
    busy += device.busy;
  }
  if (prediction.makespan > 0) prediction.bubble = 1 - busy / program.devices / prediction.makespan;
  return prediction;
}

std::string ToText(const Prediction& prediction) {
  std::string out = fmt::format("makespan {:g} T   bubble {:.1f} %", prediction.makespan,
                                prediction.bubble * 100);
  if (std::abs(prediction.period - prediction.makespan) > prediction.makespan * 1e-9)
    out += fmt::format("   period {:g} T", prediction.period);
  out += "\n";
  out += "device        busy        idle  peak activations      peak bytes\n";
  for (size_t d = 0; d < prediction.devices.size(); ++d) {
    const DevicePrediction& device = prediction.devices[d];
    out += fmt::format("{:6} {:11g} {:11g} {:17g} {:>15}\n", fmt::format("d{}", d), device.busy,
                       prediction.makespan - device.busy, device.peak_activations,
                       device.peak_bytes > 0 ? fmt::format("{}", device.peak_bytes) : "-");
  }
  return out;
}

std::string ToJson(const Prediction& prediction, const std::string& plan) {
  std::string out =
      plan.empty() ? "{" : fmt::format(R"({{"plan":{},)", nlohmann::json(plan).dump());
  out += fmt::format(R"("makespan":{:.9g},"unit":"T","period":{:.9g},"bubble":{:.9g},"devices":[)",
                     prediction.makespan, prediction.period, prediction.bubble);
  for (const DevicePrediction& device : prediction.devices) {
    if (out.back() == '}') out += ',';
    out += fmt::format(R"({{"busy":{:.9g},"peak_activations":{:.9g})", device.busy,
                       device.peak_activations);
    if (device.peak_bytes > 0) out += fmt::format(R"(,"peak_bytes":{})", device.peak_bytes);
    out += '}';
  }
  return out + "]}";
}

}  // namespace pp
