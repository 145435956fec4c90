#include "compiler/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "compiler/period.h"
#include "schema/base/units.h"
#include "schema/sections.h"
#include "schema/semantics/alive.h"
#include "schema/semantics/placement.h"
#include "schema/text.h"

namespace pp {
namespace {

// An input is kept until its backward is over, beside what was computed again from it.
void AddPeaks(const Program& program, const std::vector<Instruction>& list, const CostModel& costs,
              DevicePrediction* to) {
  std::vector<double> sizes;  // by shape
  for (int shape = 0; shape < program.shapes(); ++shape) sizes.push_back(program.SizeOf(shape));
  std::set<std::pair<int32_t, int32_t>> kept;  // stages and micro-batches
  double alive = 0, peak = 0, inputs = 0;
  for (const Instruction& i : list) {
    const double size = sizes[program.ShapeOf(i.micro)];
    const double input = i.stage < 0 ? 0 : At(costs.in, i.stage) * size;
    if (i.op == Op::kForwardDrop && input > 0) {
      kept.insert({i.stage, i.micro});
      inputs += input;
    }
    const int change = ActivationChange(i.op);
    alive += change * size;
    peak = std::max(peak, alive);
    to->peak_with_inputs = std::max(to->peak_with_inputs, alive * to->share + inputs);
    if (change < 0 && kept.erase({i.stage, i.micro}) > 0) inputs -= input;
  }
  to->peak_activations = peak * to->share;
}

// If steps overlap: from the end of a device's first body to that of its second, in the steady
// state.
double OverlappingPeriod(const Program& program, const Execution& unrolled, int device) {
  const size_t body = program.lists[device].body.size();
  if (body == 0) return 0;
  const size_t first = static_cast<size_t>(PrologueSize(program, device)) + body - 1;
  return unrolled.spans[device][first + body].end - unrolled.spans[device][first].end;
}

}  // namespace

std::vector<DevicePrediction> PeaksOf(const Program& unrolled, const CostModel& costs) {
  const Placement placement(unrolled);
  const std::vector<double> shares = unrolled.Shares();
  std::optional<AliveBytes> alive;
  if (!unrolled.job && CountsBytes(costs)) alive.emplace(unrolled, costs);
  std::vector<DevicePrediction> devices(unrolled.devices);
  for (int d = 0; d < unrolled.devices; ++d) {
    if (const auto held = placement.On(d); !held.empty())
      devices[d].share = shares[held.front().stage];
    AddPeaks(unrolled, unrolled.lists[d].body, costs, &devices[d]);
    if (unrolled.job) devices[d].peak_bytes = unrolled.lists[d].arena_bytes;
    if (alive) devices[d].peak_bytes = alive->MostOn(d).sum;
  }
  return devices;
}

double BusyTime(const std::vector<Instruction>& list, const Durations& durations) {
  double busy = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].overlap) {
      busy += durations.Pair(list[i], list[i + 1]);
      ++i;
    } else if (Info(list[i].op).lane == Lane::kCompute) {
      busy += durations(list[i]);
    } else {
      busy += durations.Lost(list[i]);
    }
  }
  return busy;
}

std::pair<int, size_t> LastInstruction(const Program& program, const Execution& execution) {
  std::pair<int, size_t> last;
  if (program.overlaps) {
    for (int d = 1; d < program.devices; ++d)
      if (OverlappingPeriod(program, execution, d) >
          OverlappingPeriod(program, execution, last.first))
        last.first = d;
    last.second = static_cast<size_t>(PrologueSize(program, last.first)) +
                  2 * program.lists[last.first].body.size() - 1;
    return last;
  }
  double end = -1;
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < execution.spans[d].size(); ++i)
      if (execution.spans[d][i].end > end) end = execution.spans[d][i].end, last = {d, i};
  return last;
}

double MakespanOf(const Program& program, const Execution& execution) {
  if (!program.overlaps) return execution.makespan;
  return OverlappingPeriod(program, execution, LastInstruction(program, execution).first);
}

Result<Prediction> Simulate(const Program& program, const std::vector<WaitsFor>& waits_for,
                            const CostModel& costs, const NetworkModel& network) {
  const bool overlaps = program.overlaps;
  std::optional<Program> copy;
  if (overlaps) copy = Unrolled(program);
  const Program& unrolled = overlaps ? *copy : program;
  const auto on = OnTransport::Make(network, program);
  if (!on.ok()) return on.status();
  auto execution = on->Execute(unrolled, waits_for, costs);
  if (!execution.ok()) return execution.status();
  Prediction prediction{.execution = std::move(*execution), .unit = costs.Unit()};
  prediction.makespan = MakespanOf(program, prediction.execution);
  prediction.period = prediction.makespan;
  if (!overlaps && !program.clip) {
    const auto period = SteadyPeriod(program, costs, *on);
    if (!period.ok()) return period.status();
    prediction.period = *period;
  }
  const Durations durations(costs, program);
  prediction.devices = PeaksOf(unrolled, costs);
  double busy = 0;
  for (int d = 0; d < program.devices; ++d) {
    DevicePrediction& device = prediction.devices[d];
    device.busy = BusyTime(program.lists[d].body, durations);
    busy += device.busy;
  }
  if (prediction.makespan > 0) prediction.bubble = 1 - busy / program.devices / prediction.makespan;
  return prediction;
}

namespace {

std::string ToText(const Why& why, bool shared_links) {
  std::string out = fmt::format("{:<14}{:>11}{:>11}", "idle", "warm-up", "drain");
  const auto shown = [&](size_t c) { return shared_links || Cause(c) != Cause::kLink; };
  for (size_t c = 0; c < kCauses.size(); ++c)
    if (shown(c)) out += fmt::format("{:>11}", kCauses[c]);
  const auto add = [&](const ByCause& by_cause, size_t first) {
    for (size_t c = first; c < kCauses.size(); ++c)
      if (shown(c)) out += fmt::format("{:11.5g}", by_cause[c]);
    out += "\n";
  };
  out += "\n";
  for (size_t d = 0; d < why.idle.size(); ++d) {
    out += fmt::format("{:>6}        {:11.5g}{:11.5g}", fmt::format("d{}", d), why.idle[d].warm_up,
                       why.idle[d].drain);
    add(why.idle[d].gaps, 0);
  }
  out += fmt::format("{:<36}{:>11}", "saved if free", "-");  // a dependence cannot be
  add(why.saved, 1);
  out += fmt::format("critical path: {} instructions\n", why.critical_path.size());
  for (const PathStep& step : why.critical_path)
    out += fmt::format("{:14g} {:10g}  d{} {}\n", step.start, step.end, step.device,
                       ToText(step.instruction));
  return out;
}

// Members of JSON objects: a device's idle time, and what is said of the plan.
std::string ToJson(const Idle& idle) {
  std::string out =
      fmt::format(R"("idle":{{"warm-up":{:.9g},"drain":{:.9g})", idle.warm_up, idle.drain);
  for (size_t c = 0; c < kCauses.size(); ++c)
    out += fmt::format(R"(,"{}":{:.9g})", kCauses[c], idle.gaps[c]);
  return out + "}";
}

std::string ToJson(const Why& why) {
  std::string out = R"("saved":{)";
  for (size_t c = 1; c < kCauses.size(); ++c)  // a dependence cannot be free
    out += fmt::format(R"({}"{}":{:.9g})", c > 1 ? "," : "", kCauses[c], why.saved[c]);
  out += R"(},"critical_path":[)";
  for (const PathStep& step : why.critical_path)
    out += fmt::format(
        R"({}{{"device":{},"index":{},"instruction":"{}","start":{:.9g},"end":{:.9g}}})",
        out.back() == '}' ? "," : "", step.device, step.index, ToText(step.instruction), step.start,
        step.end);
  return out + "]";
}

// Whether checkpointed forwards keep anything that the costs count.
bool KeepsInputs(const Prediction& prediction) {
  return std::any_of(
      prediction.devices.begin(), prediction.devices.end(),
      [](const DevicePrediction& d) { return d.peak_with_inputs != d.peak_activations; });
}

}  // namespace

std::string ToText(const Prediction& prediction) {
  std::string out = fmt::format("makespan {:g} {}   bubble {:.1f} %", prediction.makespan,
                                prediction.unit, prediction.bubble * 100);
  if (std::abs(prediction.period - prediction.makespan) > prediction.makespan * 1e-9)
    out += fmt::format("   period {:g} {}", prediction.period, prediction.unit);
  if (prediction.plan_costs) out += "   costs of the plan";
  out += "\n";
  const bool inputs = KeepsInputs(prediction);
  out += fmt::format("device        busy        idle  peak activations     peak memory{}\n",
                     inputs ? "  peak with inputs" : "");
  for (size_t d = 0; d < prediction.devices.size(); ++d) {
    const DevicePrediction& device = prediction.devices[d];
    const double idle = prediction.makespan - device.busy;
    out += fmt::format(
        "{:6} {:11g} {:11g} {:17g} {:>15}", fmt::format("d{}", d), device.busy,
        std::abs(idle) > prediction.makespan * 1e-12 ? idle : 0, device.peak_activations,
        device.peak_bytes > 0 ? BytesText(static_cast<double>(device.peak_bytes)) : "-");
    out += inputs ? fmt::format(" {:17g}\n", device.peak_with_inputs) : "\n";
  }
  if (prediction.why) out += ToText(*prediction.why, prediction.execution.links.has_value());
  return out;
}

std::string ToJson(const Prediction& prediction, const std::string& plan,
                   const std::string& members) {
  std::string out =
      plan.empty() ? "{"
                   : fmt::format(R"({{"plan":{},)", nlohmann::json(plan).dump(
                                                        -1, ' ', /*ensure_ascii=*/true,
                                                        nlohmann::json::error_handler_t::replace));
  out +=
      fmt::format(R"("makespan":{:.9g},"unit":"{}","period":{:.9g},"bubble":{:.9g},{}"devices":[)",
                  prediction.makespan, prediction.unit, prediction.period, prediction.bubble,
                  prediction.plan_costs ? R"("costs":"plan",)" : "");
  for (size_t d = 0; d < prediction.devices.size(); ++d) {
    const DevicePrediction& device = prediction.devices[d];
    if (d > 0) out += ',';
    out += fmt::format(R"({{"busy":{:.9g},"peak_activations":{:.9g})", device.busy,
                       device.peak_activations);
    if (KeepsInputs(prediction))
      out += fmt::format(R"(,"peak_with_inputs":{:.9g})", device.peak_with_inputs);
    if (device.peak_bytes > 0) out += fmt::format(R"(,"peak_bytes":{})", device.peak_bytes);
    if (prediction.why) out += "," + ToJson(prediction.why->idle[d]);
    out += '}';
  }
  out += "]";
  if (prediction.why) out += "," + ToJson(*prediction.why);
  if (!members.empty()) out += "," + members;
  return out + "}";
}

}  // namespace pp
