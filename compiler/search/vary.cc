#include "compiler/search/vary.h"

#include <algorithm>
#include <cmath>

#include "compiler/search/ledger.h"

namespace pp::search {
namespace {

constexpr double kTiny = 1e-9;
// Accepted losses at the start of the search, in mean durations of a task.
constexpr double kWarm = 0.1;
// After this many misfits in a row the search gives up on a plan.
constexpr int kMostMisfits = 20'000;

double MeanTime(const Problem& problem) {
  double sum = 0;
  for (double time : problem.time) sum += time;
  return sum / static_cast<double>(problem.time.size());
}

// The longest makespan that is accepted in place of one of `makespan`.
double Cutoff(Workbench& bench, double makespan) {
  return makespan - kWarm * MeanTime(bench.problem) * std::log(bench.random.Unit()) + kTiny;
}

void VaryRule(int what, int value, int cells, CellRule& rule) {
  switch (what) {
    case 0:
      rule.keep = value % 2 == 0;
      break;
    case 1:
      rule.window = std::clamp(rule.window + value % 5 - 2, 1, cells);
      break;
    case 2:
      rule.first = static_cast<First>(value % kFirsts);
      break;
    case 3:
      rule.early = value % 2 == 0;
      break;
    case 4:
      rule.weights = value % 4 == 0 ? cells : value % 8;
      break;
  }
}

// Lets two neighbours of an order change places, unless that order is bound.
void VaryOrder(const Problem& problem, Random& random, std::vector<int>& cells) {
  const int at = random.Below(static_cast<int>(cells.size()) - 1);
  if (problem.sum[cells[at]] != problem.sum[cells[at + 1]]) std::swap(cells[at], cells[at + 1]);
}

void ChangeRules(const Problem& problem, Random& random, Rules& rules) {
  const int device = random.Below(problem.devices);
  const auto& cells = rules.forwards[device];
  const int size = static_cast<int>(cells.size());
  if (size < 2) return;
  const int what = random.Below(6);
  if (what == 5) {
    VaryOrder(problem, random, rules.forwards[device]);
    VaryOrder(problem, random, rules.backwards[device]);
    return;
  }
  const int begin = random.Below(size), value = random.Below(1 << 20);
  const int count = random.Below(3) > 0 ? 1 : 1 + random.Below(size - begin);
  for (int i = begin; i < begin + count; ++i) VaryRule(what, value, size, rules.cells[cells[i]]);
}

// Makes up to `count` cells from position `at` on recompute, just before their backwards.
void DropSome(int at, int count, std::vector<Task>& list, std::vector<uint8_t>& dropped) {
  for (int i = at; i < static_cast<int>(list.size()) && count > 0; ++i) {
    const int cell = CellOf(list[i]);
    if (PartOf(list[i]) != Part::kForward || dropped[cell]) continue;
    list.insert(std::find(list.begin() + i, list.end(), MakeTask(cell, Part::kBackward)),
                MakeTask(cell, Part::kRecompute));
    dropped[cell] = 1;
    --count;
  }
}

// Moves the task at `at` by up to `places` places to the left or to the right.
void Shift(const Problem& problem, int at, int places, std::vector<Task>& list) {
  const Task task = list[at];
  const int step = places < 0 ? -1 : 1, size = static_cast<int>(list.size());
  for (; places != 0; places -= step, at += step) {
    const int next = at + step;
    if (next < 0 || next >= size || !MaySwap(problem, list[next], task)) break;
    std::swap(list[at], list[next]);
  }
}

void ChangePlan(const Problem& problem, Random& random, Plan& plan) {
  constexpr int kMostDrops = 4, kMostPlaces = 6;
  auto& list = plan.lists[random.Below(problem.devices)];
  if (list.empty()) return;
  const int at = random.Below(static_cast<int>(list.size()));
  if (random.Below(2) == 0) {
    DropSome(at, 1 + random.Below(kMostDrops), list, plan.dropped);
  } else {
    const int places = 1 + random.Below(kMostPlaces);
    Shift(problem, at, random.Below(2) == 0 ? places : -places, list);
  }
}

}  // namespace

void VaryRules(Workbench& bench, Rules rules) {
  Dispatcher& dispatcher = bench.dispatcher;
  double makespan = dispatcher.Run(rules);
  if (makespan == kNever) return;
  // The policy's own decisions become the rule.
  for (int cell = 0; cell < bench.problem.cells(); ++cell) {
    rules.cells[cell].keep = !dispatcher.plan().dropped[cell];
    rules.cells[cell].reserve = 0;
  }
  makespan = dispatcher.Run(rules);
  Rules changed;
  Plan last, plan;
  while (!bench.Over()) {
    changed = rules;
    for (int changes = 1 + bench.random.Below(3); changes > 0; --changes)
      ChangeRules(bench.problem, bench.random, changed);
    const double result = dispatcher.Run(changed, Cutoff(bench, makespan));
    if (result == kNever) continue;
    std::swap(rules, changed);
    const bool promising = result <= makespan + MeanTime(bench.problem);
    makespan = result;
    if (!promising || dispatcher.plan().lists == last.lists) continue;
    last = dispatcher.plan();
    plan = last;
    const double polished = Polish(bench.problem, PolishFor(bench.problem), bench.clock, plan);
    bench.Offer(plan, polished);
  }
}

void VaryPlan(Workbench& bench) {
  Plan plan = bench.best(), changed;
  double makespan = bench.best_makespan();
  // If hardly anything fits, there may be no plan nearby; finding that out does not count as work.
  for (int misfits = 0; misfits < kMostMisfits && !bench.Over();) {
    changed = plan;
    for (int changes = 1 + bench.random.Below(2); changes > 0; --changes)
      ChangePlan(bench.problem, bench.random, changed);
    if (!Fits(bench.problem, changed)) {
      ++misfits;
      continue;
    }
    if (bench.clock.Earliest(changed) == kNever) continue;
    misfits = 0;
    const PolishOptions options{.keep = static_cast<KeepOrder>(bench.random.Below(3)), .rounds = 1};
    const double result = Polish(bench.problem, options, bench.clock, changed);
    if (result > Cutoff(bench, makespan)) continue;
    makespan = result;
    std::swap(plan, changed);
    bench.Offer(plan, makespan);
  }
}

}  // namespace pp::search
