#include "compiler/search/search.h"

#include <algorithm>
#include <utility>

#include "compiler/search/anneal.h"
#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "compiler/search/starts.h"
#include "compiler/search/vary.h"

namespace pp::search {
namespace {

// The work of a search without a time limit: about half a second for a hundred cells, two for some
// thousands.
constexpr int64_t kPolicyWork = 10'000'000, kPhaseWork = 9'000'000;
constexpr int64_t kAnnealWork = 15'000'000, kAnnealWorkPerCell = 12'000;
constexpr int kAnnealings = 2, kMostWorkCells = 1'600;
// With this many cells local search does not pay.
constexpr int kManyCells = 6'000;
// The number of policies whose rules the local search starts from.
constexpr size_t kBestRules = 3;
// The number of orders that the policies follow.
constexpr size_t kMostOrders = 4;

// Roughly in order of usefulness: each gained the most over those before it, on some hundred
// pipelines of 2 to 16 devices, with even and uneven costs.
constexpr Policy kPolicies[] = {
    {Policy::kFlow, 1, Policy::kInputs, First::kForwardAlways},
    {Policy::kOpen, 1, Policy::kInputs, First::kForward},
    {Policy::kRoundTrip, 0.5, Policy::kInputs, First::kForwardAlways},
    {Policy::kFlow, 2, Policy::kInputs, First::kForwardAlways},
    {Policy::kOpen, 1, Policy::kNothing, First::kForward},
    {Policy::kFlow, 1.5, Policy::kInputs, First::kRecompute},
    {Policy::kOpen, 1, Policy::kNothing, First::kRecompute},
    {Policy::kRoundTrip, 1, Policy::kInputs, First::kForwardAlways},
    {Policy::kFlow, 1.5, Policy::kInputs, First::kForwardAlways},
    {Policy::kRoundTrip, 1, Policy::kNothing, First::kForwardAlways},
    {Policy::kRoundTrip, 1, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kRoundTrip, 1, Policy::kNothing, First::kRecompute},
    {Policy::kFlow, 1, Policy::kNothing, First::kForwardAlways},
    {Policy::kFlow, 1.25, Policy::kInputs, First::kForward},
    {Policy::kOpen, 1, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kFlow, 2, Policy::kNothing, First::kForwardAlwaysIfStarving},
    {Policy::kRoundTrip, 0.75, Policy::kInputs, First::kForwardAlwaysIfStarving},
    {Policy::kFlow, 1, Policy::kNothing, First::kRecompute},
};

// Tries a plan unchanged and polished.
void TryPlan(Workbench& bench, const Plan& start, const PolishOptions& options) {
  if (!Fits(bench.problem, start)) return;
  Plan plan = start;
  const double makespan = bench.clock.Earliest(plan);
  if (makespan == kNever) return;
  bench.Offer(plan, makespan);
  bench.Offer(plan, Polish(bench.problem, options, bench.clock, plan));
}

void TryStarts(Workbench& bench, const Plan& start) {
  PolishOptions options = PolishFor(bench.problem);
  TryPlan(bench, start, options);
  TryPlan(bench, KeepAll(start), options);
  TryPlan(bench, DropAll(start), options);
  options.first = PolishOptions::kPrepose;
  TryPlan(bench, DropAll(start), options);
}

// The orders for the dispatcher to follow: the given one and, if a device has several stages, a few
// in groups. Small groups need less memory, groups of D micro-batches fill the pipeline.
std::vector<Plan> Orders(Workbench& bench, const Plan& start) {
  const Problem& problem = bench.problem;
  std::vector<Plan> orders;
  auto add = [&](Plan plan) {
    if (bench.dispatcher.MayFollow(MakeRules(problem, plan, {}))) orders.push_back(std::move(plan));
  };
  add(KeepAll(start));
  const int sums = *std::max_element(problem.sum.begin(), problem.sum.end()) + 1;
  if (sums <= problem.devices) return orders;
  const int fill = std::min(problem.devices, problem.micros);
  for (int size = fill; size > 0; size -= 1 + size / 8)
    if (orders.size() < kMostOrders) add(InGroups(problem, start, size));
  for (int size : {2 * fill, problem.micros})
    if (size > fill && size <= problem.micros) add(InGroups(problem, start, size));
  return orders;
}

struct TriedRules {
  double makespan;
  Rules rules;
};

// Builds a plan with each policy. Returns the rules whose unpolished plans are fastest.
std::vector<TriedRules> TryPolicies(Workbench& bench, const Plan& start) {
  std::vector<TriedRules> tried;
  const std::vector<Plan> all_orders = Orders(bench, start);
  for (const Policy& policy : kPolicies)
    for (const Plan& orders : all_orders) {
      if (bench.Over()) return tried;
      TriedRules next{0, MakeRules(bench.problem, orders, policy)};
      next.makespan = bench.dispatcher.Run(next.rules);
      if (next.makespan == kNever) continue;
      TryPlan(bench, bench.dispatcher.plan(), PolishFor(bench.problem));
      const auto at =
          std::upper_bound(tried.begin(), tried.end(), next,
                           [](const auto& a, const auto& b) { return a.makespan < b.makespan; });
      tried.insert(at, std::move(next));
      if (tried.size() > kBestRules) tried.pop_back();
    }
  return tried;
}

// Local search from a policy's rules, from rules derived from the best plan, and on that plan
// itself.
void Improve(Workbench& bench, const std::vector<TriedRules>& tried, size_t turn, double share) {
  const auto shared = [&](int64_t work) { return static_cast<int64_t>(share * work); };
  if (!tried.empty()) {
    bench.Allow(shared(kPhaseWork));
    VaryRules(bench, tried[turn % tried.size()].rules);
  }
  bench.Allow(shared(kPhaseWork));
  VaryRules(bench, Imitate(bench.problem, bench.best()));
  for (int round = 0; round < kAnnealings; ++round)
    Anneal(bench, shared(kAnnealWork +
                         kAnnealWorkPerCell * std::min(bench.problem.cells(), kMostWorkCells)));
}

}  // namespace

bool IsLarge(const Problem& problem) { return problem.cells() >= kManyCells; }

std::vector<int64_t> SmallestLimits(const Problem& problem) { return OneByOne(problem).limit; }

SearchOutcome Search(const Problem& problem, const std::vector<Plan>& starts,
                     const SearchOptions& options) {
  const double bound = options.lower_bound ? *options.lower_bound : LowerBound(problem);
  Workbench bench(problem, bound + problem.lead, options.progress);
  bench.Allow(kPolicyWork);
  const Plan* fastest = &starts.front();
  for (const Plan& start : starts) {
    const double before = bench.best_makespan();
    TryStarts(bench, start);
    if (bench.best_makespan() < before) fastest = &start;
  }
  const std::vector<TriedRules> tried = TryPolicies(bench, *fastest);
  if (bench.best_makespan() == kNever) TryPlan(bench, OneByOne(problem).plan, {});
  PP_CHECK(bench.best_makespan() != kNever);
  if (!options.quick && !IsLarge(problem)) Improve(bench, tried, 0, options.share);
  if (options.seconds > 0) bench.StopAfter(options.seconds);
  for (size_t turn = 1; options.seconds > 0 && !bench.Finished(); ++turn)
    Improve(bench, tried, turn, 1);
  return {bench.best(), bench.best_makespan() - problem.lead, bound};
}

}  // namespace pp::search
