#include "compiler/search/search.h"

#include <algorithm>
#include <utility>

#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "compiler/search/starts.h"
#include "compiler/search/vary.h"

namespace pp::search {
namespace {

// The work of a search without a time: a third of a second or so.
constexpr int64_t kPolicyWork = 10'000'000, kRulesWork = 10'000'000, kPlanWork = 10'000'000;

constexpr Policy kPolicies[] = {
    {Policy::kFlow, 1, Policy::kInputs, First::kForwardAlways},
    {Policy::kFlow, 1, Policy::kNothing, First::kForward},
    {Policy::kRoundTrip, 1, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kFlow, 2, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kFlow, 1, Policy::kNothing, First::kRecompute},
    {Policy::kFlow, 1.5, Policy::kNothing, First::kForwardAlwaysIfStarving},
    {Policy::kRoundTrip, 0.5, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kFlow, 1.5, Policy::kInputs, First::kForwardIfStarving},
    {Policy::kFlow, 2, Policy::kInputs, First::kRecompute},
    {Policy::kOpen, 1, Policy::kNothing, First::kForwardIfStarving},
    {Policy::kRoundTrip, 1, Policy::kInputs, First::kForward},
    {Policy::kFlow, 2, Policy::kNothing, First::kForward},
};

// Tries a plan as it is and polished.
void TryPlan(Workbench& bench, const Plan& start, const PolishOptions& options) {
  if (!Fits(bench.problem, start)) return;
  Plan plan = start;
  const double makespan = bench.clock.Earliest(plan);
  if (makespan == kNever) return;
  bench.Offer(plan, makespan);
  bench.Offer(plan, Polish(bench.problem, options, bench.clock, plan));
}

// The orders that the dispatcher is to follow.
std::vector<Plan> Orders(const Problem& problem, const Plan& start) {
  std::vector<Plan> orders = {KeepAll(start)};
  const bool several = problem.stages > problem.devices;
  for (int size = 1; several && size <= problem.micros; size *= 2)
    orders.push_back(InGroups(problem, start, size));
  return orders;
}

// Builds a plan by each policy. The rules whose unpolished plan is fastest.
Rules TryPolicies(Workbench& bench, const Plan& start) {
  Rules best;
  double best_makespan = kNever;
  for (const Policy& policy : kPolicies)
    for (const Plan& orders : Orders(bench.problem, start)) {
      if (bench.Over()) return best;
      Rules rules = MakeRules(bench.problem, orders, policy);
      const double makespan = bench.dispatcher.Run(rules);
      if (makespan == kNever) continue;
      TryPlan(bench, bench.dispatcher.plan(), {});
      if (makespan >= best_makespan) continue;
      best = std::move(rules);
      best_makespan = makespan;
    }
  return best;
}

void Improve(Workbench& bench, const Rules& rules) {
  bench.Allow(kRulesWork);
  if (!rules.cells.empty()) VaryRules(bench, rules);
  bench.Allow(kPlanWork);
  VaryPlan(bench);
}

}  // namespace

int64_t SmallestLimit(const Problem& problem, int device) {
  return OneByOne(problem).limit[device];
}

SearchOutcome Search(const Problem& problem, const Plan& start, const SearchOptions& options) {
  const double bound = LowerBound(problem).makespan;
  Workbench bench(problem, bound, options.progress);
  bench.Allow(kPolicyWork);
  TryPlan(bench, start, {});
  TryPlan(bench, KeepAll(start), {});
  TryPlan(bench, DropAll(start), {.first = PolishOptions::kPrepose});
  TryPlan(bench, DropAll(start), {});
  const Rules rules = TryPolicies(bench, start);
  if (bench.best_makespan() == kNever) TryPlan(bench, OneByOne(problem).plan, {});
  Improve(bench, rules);
  return {bench.best(), bench.best_makespan(), bound};
}

}  // namespace pp::search
