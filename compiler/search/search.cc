#include "compiler/search/search.h"

#include <algorithm>
#include <deque>
#include <future>
#include <optional>
#include <utility>

#include "compiler/search/anneal.h"
#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "compiler/search/starts.h"
#include "compiler/search/steady.h"
#include "compiler/search/vary.h"
#include "compiler/search/weights.h"
#include "schema/base/background.h"

namespace pp::search {
namespace {

// The work of the policies, and of a turn of local search.
constexpr int64_t kPolicyWork = 7'000'000, kRulesWork = 9'000'000, kBestRulesWork = 1'800'000;
constexpr int64_t kAnnealWork = 15'000'000, kAnnealWorkPerCell = 12'000;
constexpr int kMostWorkCells = 1'600;
// The work of the dispatcher for one plan, where there is another one.
constexpr int64_t kMostRunWork = 1'000'000;
// With this many cells local search does not pay.
constexpr int kManyCells = 6'000;
// With this many the first policy leads to a plan, or none does.
constexpr int kMostPolicyCells = 30'000;
// The number of orders that the policies follow.
constexpr size_t kMostOrders = 4;

// Roughly in order of usefulness: each gained the most over those before it, on some hundred
// pipelines of 2 to 16 devices, with even and uneven costs.
constexpr Policy kPolicies[kPolicyCount] = {
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

// A plan as it is, and polished.
struct Tried {
  Plan plan, polished;
  double makespan = kNever, polished_makespan = kNever;
};
Tried Try(const Problem& problem, const PolishOptions& options, Clock& clock, Plan plan) {
  Tried tried;
  if (!Fits(problem, plan)) return tried;
  tried.makespan = clock.Earliest(plan);
  if (tried.makespan == kNever) return tried;
  tried.plan = plan;
  tried.polished_makespan = Polish(problem, options, clock, plan);
  tried.polished = std::move(plan);
  return tried;
}

void OfferBoth(Workbench& bench, const Tried& tried) {
  bench.Offer(tried.plan, tried.makespan);
  bench.Offer(tried.polished, tried.polished_makespan);
}

void TryPlan(Workbench& bench, const Plan& plan, const PolishOptions& options) {
  OfferBoth(bench, Try(bench.problem, options, bench.clock, plan));
}

// Each of the plans that a start leads to, with many cells in a thread of its own.
void TryStarts(Workbench& bench, const Plan& start) {
  const Problem& problem = bench.problem;
  const bool large = IsLarge(problem.cells());
  PolishOptions options = PolishFor(problem);
  const Plan kept = KeepAll(start);
  std::vector<std::future<Tried>> tries;
  const auto add = [&](auto make) {
    tries.push_back(std::async(large ? kInBackground : std::launch::deferred, [&, make] {
      std::optional<Plan> plan = make();
      Clock clock(problem);
      return plan ? Try(problem, options, clock, std::move(*plan)) : Tried();
    }));
  };
  add([&] { return std::optional(start); });
  if (kept.lists != start.lists) add([&] { return std::optional(kept); });
  if (bench.Uses(Method::kPlaceWeights)) add([&] { return PlaceWeights(problem, kept); });
  for (auto& tried : tries) OfferBoth(bench, tried.get());
  // With many cells each of these takes long, and the policies recompute, too.
  if (large && bench.best_makespan() != kNever) return;
  if (!bench.Uses(Method::kDropAll)) return;
  TryPlan(bench, DropAll(start), options);
  if (large) return;
  options.first = PolishOptions::kPrepose;
  TryPlan(bench, DropAll(start), options);
}

// The fastest of those that fit, or, if none does, the one whose peaks are lowest.
const Plan& MostPromising(const Problem& problem, const std::vector<Plan>& starts) {
  using Cost = std::pair<int64_t, double>;  // memory above the limits, makespan
  std::vector<std::future<Cost>> costs;
  for (const Plan& start : starts)
    costs.push_back(std::async(kInBackground, [&] {
      int64_t above = 0;
      for (int d = 0; d < problem.devices; ++d)
        above += std::max<int64_t>(0, Peak(problem, start, d) - problem.memory.limit[d]);
      return Cost(above, Clock(problem).Earliest(start));
    }));
  const Plan* best = &starts.front();
  Cost least = {INT64_MAX, kNever};
  for (size_t i = 0; i < starts.size(); ++i)
    if (const Cost next = costs[i].get(); next < least) best = &starts[i], least = next;
  return *best;
}

// The orders for the dispatcher to follow: the given one and, if a device has several stages, a few
// in groups. Small groups need less memory, groups of D micro-batches fill the pipeline. Each is
// made when it is asked for.
class Orders {
 public:
  Orders(Workbench& bench, const Plan& start)
      : bench_(bench), start_(start), micros_(OrderOfSums(bench.problem, start)), sizes_{kAsGiven} {
    const Problem& problem = bench.problem;
    const int sums = *std::max_element(problem.sum.begin(), problem.sum.end()) + 1;
    if (sums <= problem.devices || micros_.empty()) return;
    fill_ = std::min(problem.devices, problem.micros);
    for (int size = fill_; size > 0; size -= 1 + size / 8) sizes_.push_back(size);
    for (const int size : {2 * fill_, problem.micros})
      if (size > fill_ && size <= problem.micros) sizes_.push_back(size);
  }

  // Null: there are not so many.
  const Plan* At(size_t index) {
    while (orders_.size() <= index && next_ < sizes_.size()) Add(sizes_[next_++]);
    return index < orders_.size() ? &orders_[index] : nullptr;
  }

 private:
  static constexpr int kAsGiven = 0;

  // If devices can follow it within their limits, and if there are few small groups so far.
  void Add(int size) {
    if (size != kAsGiven && size <= fill_ && orders_.size() >= kMostOrders) return;
    Plan plan =
        size == kAsGiven ? KeepAll(start_) : InGroups(bench_.problem, start_, micros_, size);
    if (bench_.dispatcher.MayFollow(MakeRules(bench_.problem, plan, {})))
      orders_.push_back(std::move(plan));
  }

  Workbench& bench_;
  const Plan& start_;
  const std::vector<int> micros_;
  int fill_ = 0;
  std::vector<int> sizes_;  // of groups
  size_t next_ = 0;
  std::deque<Plan> orders_;
};

struct TriedRules {
  size_t order;     // that they follow
  double makespan;  // unpolished
  Rules rules;
  std::vector<std::vector<Task>> lists;
  int turn = 0;  // see SortInTurns
};

// Sorts them: the fastest of each order, then the second of each, and so on.
void SortInTurns(std::vector<TriedRules>& tried) {
  const auto faster = [](const auto& a, const auto& b) { return a.makespan < b.makespan; };
  std::stable_sort(tried.begin(), tried.end(), faster);
  std::vector<int> turns;  // by order: how many of its rules have had theirs
  for (TriedRules& rules : tried) {
    turns.resize(std::max(turns.size(), rules.order + 1));
    rules.turn = turns[rules.order]++;
  }
  std::stable_sort(tried.begin(), tried.end(),
                   [](const auto& a, const auto& b) { return a.turn < b.turn; });
}

// Builds a plan with each policy. Returns the rules that the local search starts from, one after
// the other.
std::vector<TriedRules> TryPolicies(Workbench& bench, const Plan& start) {
  std::vector<TriedRules> tried;
  Orders orders(bench, start);
  for (int policy = 0; policy < kPolicyCount; ++policy)
    for (size_t i = 0; !bench.Over() && orders.At(i) != nullptr; ++i) {
      if (!bench.Uses(PolicyMethod(policy))) continue;
      TriedRules next{i, 0, MakeRules(bench.problem, *orders.At(i), kPolicies[policy])};
      next.makespan = bench.dispatcher.Run(
          next.rules, kNever,
          bench.best_makespan() == kNever ? Dispatcher::kAnyWork
                                          : std::min(kMostRunWork, bench.DispatcherWorkLeft()));
      if (next.makespan == kNever) continue;
      TryPlan(bench, bench.dispatcher.plan(), PolishFor(bench.problem));
      next.lists = bench.dispatcher.plan().lists;
      if (std::any_of(tried.begin(), tried.end(),
                      [&](const auto& other) { return other.lists == next.lists; }))
        continue;
      tried.push_back(std::move(next));
    }
  SortInTurns(tried);
  return tried;
}

// A turn of local search, with another policy's rules in each: on these rules, on rules derived
// from the best plan, and on that plan itself. From several starts: every other turn, instead of on
// the best plan, on the one that the policy's rules have led to, so that not all turns end where
// the first did.
void Improve(Workbench& bench, const std::vector<TriedRules>& tried, size_t turn,
             const Effort& effort) {
  const auto shared = [&](int64_t work) { return static_cast<int64_t>(effort.share * work); };
  const int64_t work =
      shared(kAnnealWork + kAnnealWorkPerCell * std::min(bench.problem.cells(), kMostWorkCells));
  const bool several = effort.starts == Effort::kSeveral && !tried.empty();
  Plan start;
  if (!tried.empty()) {
    const Rules& rules = tried[turn % tried.size()].rules;
    bench.Allow(bench.Uses(Method::kVary) ? shared(kRulesWork) : 0);
    start = VaryRules(bench, rules);
  }
  bench.Allow(shared(kBestRulesWork));
  if (bench.Uses(Method::kImitate)) VaryRules(bench, Imitate(bench.problem, bench.best()));
  const bool other = several && turn % 2 == 1 && bench.Uses(Method::kOtherStart);
  if (bench.Uses(Method::kAnneal)) Anneal(bench, other ? start : bench.best(), work);
}

}  // namespace

bool IsLarge(int cells) { return cells >= kManyCells; }

std::vector<int64_t> SmallestLimits(const Problem& problem) { return OneByOne(problem).limit; }

SearchOutcome Search(const Problem& problem, const std::vector<Plan>& starts,
                     const SearchOptions& options) {
  const double bound = options.lower_bound ? *options.lower_bound : LowerBound(problem);
  Workbench bench(problem, bound + problem.lead, options.progress);
  bench.without = options.without;
  const Plan* fastest = &starts.front();
  if (IsLarge(problem.cells())) {
    fastest = &MostPromising(problem, starts);
    TryStarts(bench, *fastest);
  } else {
    for (const Plan& start : starts) {
      const double before = bench.best_makespan();
      TryStarts(bench, start);
      if (bench.best_makespan() < before) fastest = &start;
    }
  }
  const bool steady =
      options.effort.turns > 0 && bench.Uses(Method::kSteady) && HasSteadyState(problem);
  if (steady && !bench.Finished())
    for (const Plan& plan : SteadyPlans(problem, starts, *fastest, options.effort.share))
      TryPlan(bench, plan, PolishFor(problem));
  bench.Allow(problem.cells() < kMostPolicyCells ? kPolicyWork : kPolicyWork / 2);
  const std::vector<TriedRules> tried = TryPolicies(bench, *fastest);
  if (bench.best_makespan() == kNever)
    TryPlan(bench, OneByOne(problem, OrderOfSums(problem, *fastest)).plan, {});
  PP_CHECK(bench.best_makespan() != kNever);
  const size_t turns =
      IsLarge(problem.cells()) ? 0 : static_cast<size_t>(options.effort.turns - (steady ? 1 : 0));
  size_t turn = 0;
  for (; turn < turns && !bench.Finished(); ++turn) Improve(bench, tried, turn, options.effort);
  if (options.seconds > 0) bench.StopAfter(options.seconds);
  for (; options.seconds > 0 && !bench.Finished(); ++turn)
    Improve(bench, tried, turn, options.effort);
  return {bench.best(), bound};
}

}  // namespace pp::search
