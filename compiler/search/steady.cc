#include "compiler/search/steady.h"

#include <algorithm>
#include <future>
#include <numeric>
#include <optional>
#include <utility>

#include "compiler/search/anneal.h"
#include "compiler/search/cycle.h"
#include "compiler/search/ledger.h"
#include "compiler/search/search.h"
#include "compiler/search/starts.h"
#include "schema/base/background.h"

namespace pp::search {
namespace {

// In micro-batches per device: how few are planned, and from how many on that is worth it.
constexpr int kFew = 6, kMany = 12;
// With fewer cells local search on all of them is as good; more are too many to plan.
constexpr int kFewestCells = 1'000, kMostFewCells = 4'000;
// How few micro-batches are planned: under a part of the limits, as what is planned with less has
// room where it is repeated, and with how many turns of local search.
struct Few {
  double part;
  int turns;
};
constexpr Few kPlanned[] = {{1, 2}, {1, 0}, {0.92, 0}, {0.84, 0}, {0.76, 0}};
// The copies of a period that are changed alike, and the work of that.
constexpr int kCopies = 4;
constexpr int64_t kWork = 12'000'000;
// How many copies more tell the time of one.
constexpr int kTimed = 8;

int FewOf(const Problem& problem) {
  return kFew * problem.devices + problem.micros % problem.devices;
}

Selection First(const Problem& problem, int micros) {
  std::vector<int> first(micros);
  std::iota(first.begin(), first.end(), 0);
  return {problem, std::move(first)};
}

// Whether micro-batches a period apart have one shape, and run on the same devices in the same
// parts.
bool AreAlike(const Problem& problem, int period) {
  for (int s = 0; s < problem.stages; ++s)
    for (int m = period; m < problem.micros; ++m) {
      const int cell = problem.Cell(s, m), before = cell - period;
      if (problem.device[cell] != problem.device[before] ||
          problem.held_of[cell] != problem.held_of[before] ||
          problem.split[cell] != problem.split[before])
        return false;
    }
  return true;
}

// The mean time from the tasks of a period to those of the next one.
double TimeBetween(const Problem& problem, const Clock& clock, int begin, int period) {
  double sum = 0;
  for (int s = 0; s < problem.stages; ++s)
    for (int m = begin; m < begin + period; ++m)
      for (const Part part : {Part::kForward, Part::kBackward})
        sum += clock.end(MakeTask(problem.Cell(s, m + period), part)) -
               clock.end(MakeTask(problem.Cell(s, m), part));
  return sum / (2.0 * problem.stages * period);
}

// A plan for the first micro-batches that can be repeated for all.
struct Periodic {
  Plan plan;
  int micros;
  Cycle cycle;
  double makespan;  // of all, as estimated
};

class SteadySearch {
 public:
  SteadySearch(const Problem& problem, const std::vector<Plan>& starts, const Plan& fastest)
      : all_(problem, AsTheyBegin(problem, fastest)),
        few_(First(all_.problem(), FewOf(problem))),
        scheme_(all_.Select(fastest)) {
    for (const Plan& start : starts) starts_.push_back(few_.Select(all_.Select(start)));
  }

  // The period that is fastest when repeated, of a plan for few micro-batches.
  std::optional<Periodic> Find(const Few& few) const {
    Problem problem = few_.problem();
    const std::vector<int64_t> least = SmallestLimits(problem);
    for (int d = 0; d < problem.devices; ++d) {
      int64_t& limit = problem.memory.limit[d];
      limit = static_cast<int64_t>(few.part * static_cast<double>(limit));
      if (limit < least[d]) return std::nullopt;
    }
    const Plan plan = Search(problem, starts_, {.effort = {.turns = few.turns}}).plan;
    std::optional<Periodic> fastest;
    for (int period = 1; period <= 2 * problem.devices; ++period)
      if (AreAlike(problem, period)) Consider(plan, period, &fastest);
    return fastest;
  }

  // Local search on it. Nothing if what is found cannot be repeated within the limits.
  std::optional<Plan> Improve(const Periodic& periodic, int64_t work) const {
    Clock clock(all_.problem());
    const Selection first = First(all_.problem(), periodic.micros);
    std::optional<Plan> best;
    double makespan = kNever;
    const Workbench* found = nullptr;
    Workbench bench(first.problem(), 0, [&](double) {
      auto plan = RepeatInOrder(first.problem(), found->best(), periodic.cycle, all_.problem());
      if (!plan) return;
      const double next = clock.Earliest(*plan, makespan);
      if (next >= makespan || !IsValid(all_.problem(), *plan, scheme_)) return;
      best = std::move(plan);
      makespan = next;
    });
    found = &bench;
    bench.Offer(periodic.plan, bench.clock.Earliest(periodic.plan));
    Anneal(bench, periodic.plan, work, periodic.cycle);
    if (!best) return std::nullopt;
    return all_.Original(*best);
  }

 private:
  static bool IsValid(const Problem& problem, const Plan& plan, const Plan& scheme) {
    return Fits(problem, plan) && SameWork(problem, plan, scheme);
  }

  // All periods of that length in the plan, repeated.
  void Consider(const Plan& plan, int period, std::optional<Periodic>* fastest) const {
    const Problem& all = all_.problem();
    const int left = few_.problem().micros;
    // Without some at the end, so that whole periods are missing.
    const int cut = (period - (all.micros - left) % period) % period;
    const Selection given = First(few_.problem(), left - cut);
    const Problem& from = given.problem();
    // What is changed alike later is longer, if it may be.
    int wide = period;
    while (2 * wide <= from.devices && (all.micros - from.micros) % (2 * wide) == 0) wide *= 2;
    const int micros = from.micros + kCopies * wide;
    if (micros > all.micros) return;
    const Selection some = First(all, micros);
    const Selection more = First(all, std::min(micros + kTimed * wide, all.micros));
    const Plan short_plan = given.Select(plan), scheme = some.Select(scheme_);
    Clock clock(from), some_clock(some.problem()), more_clock(more.problem());
    clock.Earliest(short_plan);
    for (int begin = 0; begin + 2 * period <= from.micros; ++begin) {
      const double time = TimeBetween(from, clock, begin, period);
      Periodic next{RepeatInTime(from, short_plan, clock, begin, period, time, some.problem()),
                    micros,
                    {begin, wide, kCopies}};
      if (!Fits(some.problem(), next.plan)) continue;
      const double makespan = some_clock.Earliest(next.plan);
      const auto longer = RepeatInOrder(some.problem(), next.plan, next.cycle, more.problem());
      if (makespan == kNever || !longer) continue;
      const int added = more.problem().micros - micros, missing = all.micros - micros;
      next.makespan = makespan;
      if (added > 0) next.makespan += (more_clock.Earliest(*longer) - makespan) * missing / added;
      if (*fastest && next.makespan >= (*fastest)->makespan) continue;
      if (SameWork(some.problem(), next.plan, scheme)) *fastest = std::move(next);
    }
  }

  const Selection all_;  // in the order in which they begin
  const Selection few_;
  const Plan scheme_;
  std::vector<Plan> starts_;
};

}  // namespace

bool HasSteadyState(const Problem& problem) {
  return problem.micros >= kMany * problem.devices && problem.cells() > kFewestCells &&
         problem.stages * FewOf(problem) <= kMostFewCells;
}

std::vector<Plan> SteadyPlans(const Problem& problem, const std::vector<Plan>& starts,
                              const Plan& fastest, double share) {
  const SteadySearch search(problem, starts, fastest);
  const auto work = static_cast<int64_t>(share * kWork);
  std::vector<std::future<std::optional<Plan>>> found;
  for (const Few& few : kPlanned)
    found.push_back(std::async(kInBackground, [&search, few, work] {
      const auto periodic = search.Find(few);
      return periodic ? search.Improve(*periodic, work) : std::nullopt;
    }));
  std::vector<Plan> plans;
  for (auto& future : found)
    if (auto plan = future.get()) plans.push_back(std::move(*plan));
  return plans;
}

}  // namespace pp::search
