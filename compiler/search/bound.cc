#include "compiler/search/bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "compiler/search/one_device.h"

namespace pp::search {
namespace {

// Of all devices together: some hundredths of a second.
constexpr int64_t kOneDeviceWork = 10'000'000;

double WorkOf(const Group& g) { return g.f + g.b + g.w; }

// Memory x time of a cell that keeps its activation, and of one that recomputes it.
double KeptBy(const Group& g) {
  return static_cast<double>(g.held.forward) * g.residence +
         static_cast<double>(g.held.input_half) * g.w;
}
double RecomputedBy(const Group& g) {
  return static_cast<double>(g.held.dropped) *
             (std::max(g.residence, g.f + g.r + g.b) - g.r - g.b) +
         static_cast<double>(g.held.recomputed) * (g.r + g.b) +
         static_cast<double>(g.held.recomputed_half) * g.w;
}

Group MakeGroup(const Problem& problem, int cell) {
  const int stage = problem.StageOf(cell), micro = problem.MicroOf(cell);
  auto time = [&](int s, Part part) { return problem.Time(problem.Cell(s, micro), part); };
  Group group{.f = time(stage, Part::kForward),
              .r = time(stage, Part::kRecompute),
              .b = time(stage, Part::kBackward),
              .w = time(stage, Part::kWeight),
              .head = 0,
              .tail = 0,
              .residence = time(stage, Part::kForward) + time(stage, Part::kBackward),
              .held = problem.HeldBy(cell),
              .split = problem.split[cell] != 0};
  for (int s = 0; s < problem.stages; ++s) {
    const Task forward = MakeTask(problem.Cell(s, micro), Part::kForward);
    const Task backward = MakeTask(problem.Cell(s, micro), Part::kBackward);
    if (s <= stage) group.head += problem.lag[forward];
    if (s < stage) group.head += problem.time[forward], group.tail += problem.time[backward];
    if (s < stage) group.tail += problem.lag[backward];
    if (s > stage) group.residence += problem.time[forward] + problem.time[backward];
    if (s > stage) group.residence += problem.lag[forward];
    if (s >= stage) group.residence += problem.lag[backward];
  }
  return group;
}

// The smallest window of a device with one group, given n recomputes.
double Window(const Group& g, int64_t n, double limit) {
  const double m = static_cast<double>(g.count), x = static_cast<double>(n);
  double window = m * WorkOf(g) + x * g.r;
  window = std::max(window, ((m - x) * KeptBy(g) + x * RecomputedBy(g)) / limit);
  if (g.split) return window;
  const auto after_recompute = static_cast<double>(g.held.recomputed);
  if (n > 0 && after_recompute > limit) return HUGE_VAL;
  // At most q full activations at any time; in the ramps at both ends fewer.
  const double full = static_cast<double>(g.held.forward);
  const double q = std::floor(limit / full), in_ramp = std::min(q, m);
  window = std::max(window, ((m - x) * g.residence + x * (g.r + g.b) +
                             in_ramp * (in_ramp - 1) / 2 * (std::min(g.f, g.r) + g.b)) /
                                q);
  // At most this many micro-batches in flight.
  const double input = static_cast<double>(g.held.dropped);
  if (input <= 0 || input > full) return window;
  // The first one to end is full by then.
  const double first = n < g.count ? full : after_recompute;
  const double in_flight = 1 + std::floor((limit - first) / input);
  const double filled = std::min(in_flight, m);
  return std::max(window, ((m - x) * g.residence + x * std::max(g.residence, g.f + g.r + g.b) +
                           filled * (filled - 1) / 2 * (g.f + g.b)) /
                              in_flight);
}

double OneGroup(const Group& group, double limit) {
  double best = HUGE_VAL;
  for (int64_t n = 0; n <= group.count; ++n) best = std::min(best, Window(group, n, limit));
  return best;
}

// Several groups: recompute where a recompute frees most memory, in fractions of a cell.
double SeveralGroups(std::vector<Group> groups, double limit) {
  auto gain = [](const Group& g) {
    const double saved = KeptBy(g) - RecomputedBy(g);
    return saved <= 0 ? -1 : g.r > 0 ? saved / g.r : HUGE_VAL;
  };
  std::stable_sort(groups.begin(), groups.end(),
                   [&](const Group& a, const Group& b) { return gain(a) > gain(b); });
  double work = 0, memory = 0;
  for (const Group& g : groups) {
    work += static_cast<double>(g.count) * WorkOf(g);
    memory += static_cast<double>(g.count) * KeptBy(g);
  }
  for (const Group& g : groups) {
    const double saved = KeptBy(g) - RecomputedBy(g);
    if (saved <= 0 || memory / limit <= work) break;
    // work + n r == (memory - n saved) / limit
    const double n =
        std::min(static_cast<double>(g.count), (memory / limit - work) / (g.r + saved / limit));
    work += n * g.r;
    memory -= n * saved;
  }
  return std::max(work, memory / limit);
}

// By sum, whether the backward is split, and what the cells hold: their stage and shape.
using Groups = std::map<std::tuple<int, bool, int>, Group>;

// From step to step a device begins with its first forward, and ends with its last task. Between
// two of its stages there is what lies between them on a micro-batch's way; between two pipes
// nothing is certain, as the device may wait for either.
void CountFromFirstForward(const Problem& problem, Groups& groups) {
  std::vector<double> first(problem.pipes, HUGE_VAL);
  const auto first_of = [&](const auto& key) -> double& {
    return first[std::get<0>(key) % problem.pipes];
  };
  for (const auto& [key, group] : groups) first_of(key) = std::min(first_of(key), group.head);
  for (auto& [key, group] : groups) group.head -= first_of(key), group.tail = 0;
}

}  // namespace

double LowerBound(const Problem& problem) {
  std::vector<Groups> groups(problem.devices);
  const auto& split = problem.split;
  const bool mixed =
      std::adjacent_find(split.begin(), split.end(), std::not_equal_to()) != split.end();
  for (int cell = 0; cell < problem.cells(); ++cell) {
    auto& row = groups[problem.device[cell]];
    const std::tuple key(problem.sum[cell], split[cell] != 0, problem.held_of[cell]);
    auto found = row.find(key);
    if (found == row.end()) {
      found = row.emplace(key, MakeGroup(problem, cell)).first;
    } else if (mixed) {  // cells of a group differ in what other devices do for them
      const Group other = MakeGroup(problem, cell);
      Group& group = found->second;
      group.residence = std::min(group.residence, other.residence);
      group.tail = std::min(group.tail, other.tail);
    }
    ++found->second.count;
  }
  double bound = 0;
  for (int d = 0; d < problem.devices; ++d) {
    std::vector<Group> row;
    double head = HUGE_VAL, tail = HUGE_VAL, before_weights = 0;
    if (problem.period) CountFromFirstForward(problem, groups[d]);
    for (auto& [key, group] : groups[d]) {
      row.push_back(group);
      head = std::min(head, group.head);
      tail = std::min(tail, group.split ? 0 : group.tail);
      before_weights += static_cast<double>(group.count) * (group.f + group.b);
      // One micro-batch alone, there and back.
      bound = std::max(bound, group.head + group.residence + std::max(group.tail, group.w));
    }
    if (row.empty()) continue;
    const int64_t limit = problem.memory.limit[d];
    const auto room = static_cast<double>(limit);
    const double window = row.size() == 1 ? OneGroup(row[0], room) : SeveralGroups(row, room);
    bound = std::max(bound, head + window + tail);
    double least_tail = HUGE_VAL;
    for (const Group& group : row) least_tail = std::min(least_tail, group.tail);
    bound = std::max(bound, head + before_weights + least_tail);
    bound = std::max(bound, OneDevice(row, limit, kOneDeviceWork / problem.devices));
  }
  return bound;
}

}  // namespace pp::search
