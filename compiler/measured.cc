#include "compiler/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "schema/format/profile.h"
#include "schema/sections.h"
#include "schema/topology.h"

namespace pp {
namespace {

constexpr int kWarmUp = 2;  // steps that are left out, if there are more

// LOAD is at once over, and no sign that a device is busy.
bool Computes(Op op) {
  return Info(op).lane == Lane::kCompute && op != Op::kWait && op != Op::kLoad;
}

// One step of the first replica: an event for each instruction of each device.
struct Step {
  std::vector<std::vector<const Event*>> events;
  size_t missing = 0;
  double begin = HUGE_VAL, end = 0;
};

std::map<int, Step> CompleteSteps(const Program& program, std::span<const Event> events) {
  const auto counts = [topology = TopologyOf(program)](const Event& event) {
    const Place place = topology.PlaceOf(event.rank);
    return place.replica == 0 && place.index == 0;
  };
  // A step with too few events needs no table.
  size_t all = 0;
  for (const DeviceList& list : program.lists) all += list.body.size();
  std::map<int, size_t> found;
  for (const Event& event : events) found[event.step] += counts(event) ? 1 : 0;
  const int last = found.empty() ? 0 : found.rbegin()->first;
  std::map<int, Step> steps;
  for (const Event& event : events) {
    if (!counts(event) || found[event.step] < all) continue;
    if (last > kWarmUp && event.step <= kWarmUp) continue;
    Step& step = steps[event.step];
    if (step.events.empty())
      for (const DeviceList& list : program.lists) {
        step.events.emplace_back(list.body.size());
        step.missing += list.body.size();
      }
    const Event*& slot = step.events[event.device][event.index];
    step.missing -= slot == nullptr ? 1 : 0;
    slot = &event;
    step.begin = std::min(step.begin, event.start);
    step.end = std::max(step.end, event.start + event.duration);
  }
  std::erase_if(steps, [](const auto& entry) { return entry.second.missing > 0; });
  return steps;
}

// What computes at the same time, as the two of an overlapping pair do, counts once.
DeviceTimes TimesOf(const std::vector<Instruction>& list, const std::vector<Span>& spans,
                    double makespan) {
  std::vector<Span> busy;
  for (size_t i = 0; i < list.size(); ++i)
    if (Computes(list[i].op) && spans[i].end > spans[i].start) busy.push_back(spans[i]);
  std::sort(busy.begin(), busy.end(),
            [](const Span& a, const Span& b) { return a.start < b.start; });
  DeviceTimes times;
  if (busy.empty()) return times;
  times.warm_up = busy.front().start;
  double end = times.warm_up;
  for (const Span& span : busy) {
    times.gaps += std::max(0.0, span.start - end);
    times.busy += std::max(0.0, span.end - std::max(end, span.start));
    end = std::max(end, span.end);
  }
  times.drain = std::max(0.0, makespan - end);
  return times;
}

std::vector<MeasuredKind> KindsOf(const Program& program, const CostModel& costs,
                                  std::span<const Event> events, const std::map<int, Step>& steps,
                                  const Step& shown) {
  struct Samples {
    std::vector<double> shown, all;
  };
  std::map<Op, MeasuredKind> kinds;
  std::map<Op, Samples> samples;
  const Durations durations(costs, program);
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < program.lists[d].body.size(); ++i) {
      const Instruction& instruction = program.lists[d].body[i];
      const Op op = instruction.op;
      if (op == Op::kWait || Info(op).lane == Lane::kRecv) continue;
      MeasuredKind& kind = kinds.try_emplace(op, MeasuredKind{.op = op}).first->second;
      ++kind.count;
      kind.predicted += durations(instruction);
      kind.measured += shown.events[d][i]->duration;
      samples[op].shown.push_back(shown.events[d][i]->duration);
    }
  for (const Event& event : events)
    if (steps.contains(event.step))
      samples[program.lists[event.device].body[event.index].op].all.push_back(event.duration);
  std::vector<MeasuredKind> rows;
  for (auto& [op, kind] : kinds) {
    const auto count = static_cast<double>(kind.count);
    const double at = Computes(op) ? 0.5 : 0.1;
    kind.predicted /= count;
    kind.measured = Computes(op) ? kind.measured / count : Quantile(samples[op].shown, at);
    kind.median = Quantile(samples[op].all, at);
    rows.push_back(kind);
  }
  std::stable_sort(rows.begin(), rows.end(), [](const MeasuredKind& a, const MeasuredKind& b) {
    const auto rank = [](const MeasuredKind& kind) {
      return std::tuple(!Computes(kind.op), -kind.Off());
    };
    return rank(a) < rank(b);
  });
  return rows;
}

// If steps overlap they have no beginning and no end of their own.
std::vector<DeviceTimes> PredictedTimes(const Program& program, const Prediction& prediction) {
  std::vector<DeviceTimes> devices;
  for (int d = 0; d < program.devices; ++d)
    devices.push_back(
        program.overlaps
            ? DeviceTimes{.busy = prediction.devices[d].busy}
            : TimesOf(program.lists[d].body, prediction.execution.spans[d], prediction.makespan));
  return devices;
}

}  // namespace

Result<MeasuredRun> Measure(const Program& program, const CostModel& costs,
                            std::span<const Event> events) {
  const std::map<int, Step> steps = CompleteSteps(program, events);
  if (steps.empty()) return Status::Invalid("has no step with all instructions of the plan");
  MeasuredRun run;
  std::vector<std::pair<double, int>> lengths;
  // If they overlap, from the end of one to that of the next, as they are predicted.
  for (const auto& [number, step] : steps) {
    const auto before = steps.find(number - 1);
    const bool follows = program.overlaps && before != steps.end();
    if (follows || !program.overlaps)
      lengths.emplace_back(step.end - (follows ? before->second.end : step.begin), number);
  }
  if (lengths.empty()) return Status::Invalid("has no two whole steps, one after the other");
  run.steps = static_cast<int>(lengths.size());
  std::sort(lengths.begin(), lengths.end());
  run.fastest = lengths.front().first;
  run.slowest = lengths.back().first;
  std::tie(run.shown.makespan, run.step) = lengths[lengths.size() / 2];
  if (!(run.shown.makespan > 0)) return Status::Invalid("has steps that take no time");
  const Step& shown = steps.at(run.step);
  run.shown.unit = "s";
  run.shown.period = run.shown.makespan;
  run.shown.execution.makespan = shown.end - shown.begin;
  run.shown.devices = PeaksOf(Unrolled(program), costs);
  double busy = 0;
  for (int d = 0; d < program.devices; ++d) {
    std::vector<Span>& spans = run.shown.execution.spans.emplace_back();
    for (const Event* event : shown.events[d])
      spans.push_back({event->start - shown.begin, event->start - shown.begin + event->duration});
    run.devices.push_back(TimesOf(program.lists[d].body, spans, run.shown.makespan));
    run.shown.devices[d].busy = run.devices[d].busy;
    busy += run.devices[d].busy;
  }
  if (run.shown.makespan > 0) run.shown.bubble = 1 - busy / program.devices / run.shown.makespan;
  run.kinds = KindsOf(program, costs, events, steps, shown);
  return run;
}

CostModel InSeconds(CostModel costs, double seconds_per_unit) {
  for (const CostInfo& row : Costs())
    for (double& value : costs.*row.member) {
      if (row.unit == Dimension::kTime) value *= seconds_per_unit;
      if (row.unit == Dimension::kBandwidth) value /= seconds_per_unit;
    }
  costs.seconds = true;
  return costs;
}

double SecondsPerUnit(const MeasuredRun& run) {
  double predicted = 0, measured = 0;
  for (const MeasuredKind& kind : run.kinds)
    if (kind.predicted > 0 && Computes(kind.op)) {
      predicted += kind.predicted * static_cast<double>(kind.count);
      measured += kind.measured * static_cast<double>(kind.count);
    }
  return predicted > 0 ? measured / predicted : 0;
}

std::string ToText(const MeasuredRun& run, const Program& program, const Prediction& prediction) {
  const double makespan = run.shown.makespan;
  std::string out;
  if (run.seconds_per_unit > 0)
    out = fmt::format(
        "a T is {:.4g} ms, so that what computes takes as long as was measured: no prediction of "
        "the "
        "time (--costs with a profile)\n",
        run.seconds_per_unit * 1e3);
  out += fmt::format(
      "predicted {:.4g} s, measured {:.4g} s ({:+.1f} %): step {}, the median of {} ({:.4g} to "
      "{:.4g} s)\n\n{:<14}{:>8}{:>14}{:>14}{:>14}{:>16}\n",
      prediction.makespan, makespan, 100 * (prediction.makespan / makespan - 1), run.step,
      run.steps, run.fastest, run.slowest, "each, in ms", "a step", "predicted", "measured",
      "median step", "off, a device");
  for (const MeasuredKind& kind : run.kinds)
    out += fmt::format(
        "{:<14}{:>8}{:>14.3f}{:>14.3f}{:>14.3f}{:>13.1f} ms\n", Info(kind.op).text, kind.count,
        kind.predicted * 1e3, kind.measured * 1e3, kind.median * 1e3,
        1e3 * (kind.predicted - kind.measured) * static_cast<double>(kind.count) / program.devices);
  const bool overlaps = program.overlaps;
  out += fmt::format("\n{:<14}{:<11}{:>11}", "device, in ms", "", "busy");
  if (!overlaps) out += fmt::format("{:>11}{:>11}{:>11}", "warm-up", "gaps", "drain");
  out += "\n";
  const std::vector<DeviceTimes> predicted = PredictedTimes(program, prediction);
  for (int d = 0; d < program.devices; ++d)
    for (const auto& [name, times] :
         {std::pair("predicted", predicted[d]), std::pair("measured", run.devices[d])}) {
      out += fmt::format("{:<14}{:<11}", fmt::format("d{}", d), name);
      out += fmt::format("{:>11.3f}", times.busy * 1e3);
      if (!overlaps)
        for (const double seconds : {times.warm_up, times.gaps, times.drain})
          out += fmt::format("{:>11.3f}", seconds * 1e3);
      out += "\n";
    }
  return out;
}

std::string ToJson(const MeasuredRun& run, const Program& program, const Prediction& prediction) {
  std::string out = fmt::format(
      R"("measured":{{"makespan":{:.9g},"step":{},"steps":{},"fastest":{:.9g},"slowest":{:.9g},)"
      R"("bubble":{:.9g},"kinds":[)",
      run.shown.makespan, run.step, run.steps, run.fastest, run.slowest, run.shown.bubble);
  if (run.seconds_per_unit > 0) {
    const std::string unit = fmt::format(R"("seconds_per_T":{:.9g},)", run.seconds_per_unit);
    out.insert(out.find("\"kinds\""), unit);
  }
  for (const MeasuredKind& kind : run.kinds)
    out += fmt::format(
        R"({}{{"op":"{}","count":{},"predicted":{:.9g},"measured":{:.9g},"median":{:.9g}}})",
        out.back() == '[' ? "" : ",", Info(kind.op).text, kind.count, kind.predicted, kind.measured,
        kind.median);
  out += R"(],"devices":[)";
  const std::vector<DeviceTimes> predicted = PredictedTimes(program, prediction);
  const bool overlaps = program.overlaps;
  const auto times = [&](const DeviceTimes& each) {
    return overlaps
               ? fmt::format(R"({{"busy":{:.9g}}})", each.busy)
               : fmt::format(R"({{"busy":{:.9g},"warm-up":{:.9g},"gaps":{:.9g},"drain":{:.9g}}})",
                             each.busy, each.warm_up, each.gaps, each.drain);
  };
  for (int d = 0; d < program.devices; ++d)
    out += fmt::format(R"({}{{"predicted":{},"measured":{}}})", d > 0 ? "," : "",
                       times(predicted[d]), times(run.devices[d]));
  return out + "]}";
}

}  // namespace pp
