#include "compiler/search/vary.h"

#include <algorithm>
#include <cmath>

namespace pp::search {
namespace {

// Accepted losses at the start of the search, in mean durations of a task.
constexpr double kWarm = 0.1;

// The longest makespan that is accepted in place of one of `makespan`.
double Cutoff(Workbench& bench, double makespan) {
  const Problem& problem = bench.problem;
  return makespan - kWarm * problem.MeanTime() * std::log(bench.random.Unit()) + problem.tiny;
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

}  // namespace

Plan VaryRules(Workbench& bench, Rules rules) {
  Dispatcher& dispatcher = bench.dispatcher;
  double makespan = dispatcher.Run(rules);
  if (makespan == kNever) return bench.best();
  // The policy's own decisions become the rule.
  for (int cell = 0; cell < bench.problem.cells(); ++cell) {
    rules.cells[cell].keep = !dispatcher.plan().dropped[cell];
    rules.cells[cell].reserve = 0;
  }
  makespan = dispatcher.Run(rules);
  Rules changed;
  Plan last, plan, fastest;
  double least = kNever;
  while (!bench.Over()) {
    changed = rules;
    for (int changes = 1 + bench.random.Below(3); changes > 0; --changes)
      ChangeRules(bench.problem, bench.random, changed);
    const double result = dispatcher.Run(changed, Cutoff(bench, makespan));
    if (result == kNever) continue;
    std::swap(rules, changed);
    const bool promising = result <= makespan + bench.problem.MeanTime();
    makespan = result;
    if (!promising || dispatcher.plan().lists == last.lists) continue;
    last = dispatcher.plan();
    plan = last;
    bench.clock.Earliest(plan);
    const double polished = Polish(bench.problem, PolishFor(bench.problem), bench.clock, plan);
    bench.Offer(plan, polished);
    if (polished < least - bench.problem.tiny) fastest = plan, least = polished;
  }
  return least == kNever ? bench.best() : fastest;
}

}  // namespace pp::search
