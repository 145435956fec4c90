#include "schema/play/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "schema/play/deadlock.h"
#include "schema/text.h"

namespace pp {
namespace {

std::vector<Span> SpansOf(const std::vector<Instruction>& list, const std::vector<double>& over,
                          const Durations& durations) {
  std::vector<Span> spans;
  spans.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].overlap) {
      const double start = over[i] - durations.Pair(list[i], list[i + 1]);
      spans.insert(spans.end(), 2, {start, over[i]});
      ++i;
    } else {
      spans.push_back({over[i] - durations(list[i]), over[i]});
    }
  }
  return spans;
}

}  // namespace

Status Execute(const Program& program, play::Traffic traffic, play::Streams streams,
               std::optional<play::Links> links, const CostModel& costs, Execution* execution) {
  std::optional<Durations> durations;
  if (execution) durations.emplace(costs, program);
  play::Played played;
  const Status status = play::Play(program, traffic, streams,
                                   {.durations = durations ? &*durations : nullptr,
                                    .links = durations && links ? &*links : nullptr},
                                   &played);
  if (!status.ok()) return Deadlock(program, played.next, played.cycle);
  if (!execution) return {};
  *execution = {
      .traffic = std::move(traffic), .streams = std::move(streams), .links = std::move(links)};
  for (int d = 0; d < program.devices; ++d) {
    execution->spans.push_back(SpansOf(program.lists[d].body, played.over[d], *durations));
    for (const double over : played.over[d])
      execution->makespan = std::max(execution->makespan, over);
  }
  execution->played = std::move(played);
  return {};
}

Status Execute(const Program& program, const std::vector<WaitsFor>& waits_for,
               const CostModel& costs, Execution* execution) {
  auto traffic = play::FindTraffic(program, waits_for);
  if (!traffic.ok()) return traffic.status();
  play::Streams streams =
      play::MakeStreams(*traffic, play::OrderedChannels(*traffic), play::Groups::kNone);
  return Execute(program, std::move(*traffic), std::move(streams), std::nullopt, costs, execution);
}

Status Deadlock(const Program& program, std::span<const size_t> next,
                const std::vector<play::Blocked>& cycle) {
  constexpr int kShown = 8;
  std::string text;
  int stopped = 0;
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    if (next[d] == list.size() || ++stopped > kShown) continue;
    text += fmt::format("{} device {} stops at '{}'", stopped == 1 ? "" : ";", d,
                        ToText(list[next[d]]));
  }
  if (stopped > kShown) text += fmt::format("; and {} more", stopped - kShown);
  return Status::Invalid(fmt::format("deadlock:{} ({})", text, ToText(program, cycle)));
}

}  // namespace pp
