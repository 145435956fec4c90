#include "compiler/tune/dependence.h"

#include <cmath>
#include <future>
#include <memory>
#include <utility>

#include "compiler/machine/costs.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/replay.h"
#include "schema/base/background.h"

namespace pp {
namespace {

constexpr double kMostFactor = 16;
constexpr int kRounds = 4;  // of halving on a logarithmic scale: to a factor of 1.19

// The prices that are looked at.
struct Price {
  std::string_view name;
  void (*scale)(Machine& machine, double factor);
  double (*value)(const Machine& machine);
};
constexpr Price kPrices[] = {
    {"between",
     [](Machine& machine, double factor) {
       machine.between.bandwidth *= factor;
       machine.card *= factor;
     },
     [](const Machine& machine) { return machine.between.bandwidth; }},
    {"inside",
     [](Machine& machine, double factor) {
       machine.inside.bandwidth *= factor;
       machine.pair *= factor;
     },
     [](const Machine& machine) { return machine.inside.bandwidth; }},
};

using Change = std::optional<Dependence::Change>;

// A plan to be played on other machines.
struct Known {
  Candidate candidate;
  Played played;
  std::optional<Replay> replay;

  Result<double> TimeOn(const Machine& machine) const {
    const auto costs = CostsOn(machine, played.plan);
    PP_RETURN_IF_ERROR(costs.status());
    return replay->Makespan(*costs);
  }
};

class Looker {
 public:
  Looker(const TuneOptions& options, const Replay& pick, const Program& plan,
         const FindFaster& find)
      : options_(options), pick_(pick), plan_(plan), find_(find) {}

  // Up (1) or down (-1), by halving, if the pick changes at the end.
  Result<Change> Look(const Price& price, int way) {
    const auto at = [&](double distance) { return At(price, std::pow(distance, way)); };
    double inner = 1, outer = kMostFactor;
    auto change = at(outer);
    for (int round = 0; round < kRounds && change.ok() && *change; ++round) {
      const double middle = std::sqrt(inner * outer);
      auto nearer = at(middle);
      PP_RETURN_IF_ERROR(nearer.status());
      (*nearer ? outer : inner) = middle;
      if (*nearer) change = std::move(nearer);
    }
    return change;
  }

 private:
  // A plan that is faster there than the pick by more than the error: one that was found farther
  // away, or the fastest of all.
  Result<Change> At(const Price& price, double factor) {
    TuneOptions there = options_;
    there.progress = nullptr;
    there.mario = false;  // which take long
    price.scale(there.machine, factor);
    const auto costs = CostsOn(there.machine, plan_);
    PP_RETURN_IF_ERROR(costs.status());
    const auto time = pick_.Makespan(*costs);
    PP_RETURN_IF_ERROR(time.status());
    const double limit = *time / (1 + ModelError(options_));
    for (const auto& known : found_) {
      const auto other = known->TimeOn(there.machine);
      PP_RETURN_IF_ERROR(other.status());
      if (*other < limit)
        return Change({.factor = factor, .saves = 1 - *other / *time, .pick = known->candidate});
    }
    auto fastest = find_(there, limit);
    if (!fastest) return Change();
    PP_RETURN_IF_ERROR(Keep(*fastest));
    const double saves = 1 - fastest->seconds / *time;
    return Change({.factor = factor, .saves = saves, .pick = std::move(*fastest)});
  }

  Status Keep(const Candidate& candidate) {
    auto known = std::make_unique<Known>();
    known->candidate = candidate;
    if (!ExactOf(candidate.compile, options_.memory, &known->played)) return {};
    auto replay = Replay::Make(known->played.plan, known->played.waits_for);
    PP_RETURN_IF_ERROR(replay.status());
    known->replay = std::move(*replay);
    found_.push_back(std::move(known));
    return {};
  }

  const TuneOptions& options_;
  const Replay& pick_;
  const Program& plan_;
  const FindFaster& find_;
  std::vector<std::unique_ptr<Known>> found_;
};

}  // namespace

Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options, const Played& pick,
                                              const std::function<FindFaster()>& start) {
  const auto replay = Replay::Make(pick.plan, pick.waits_for);
  PP_RETURN_IF_ERROR(replay.status());
  std::vector<Dependence> all;
  std::vector<std::future<Result<Change>>> changes;  // of each the lower and the higher one
  const int node = options.machine.node;
  for (const Price& price : kPrices) {
    const bool used = price.name == "inside" || (node > 0 && options.devices > node);
    if (options.devices == 1 || !used || price.value(options.machine) == 0) continue;
    all.push_back({.price = price.name, .value = price.value(options.machine)});
    for (const int way : {-1, 1}) {
      const auto look = [&, way, find = start()] {
        return Looker(options, *replay, pick.plan, find).Look(price, way);
      };
      changes.push_back(std::async(kInBackground, look));
    }
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    auto change = changes[i].get();
    PP_RETURN_IF_ERROR(change.status());
    (i % 2 == 0 ? all[i / 2].lower : all[i / 2].higher) = std::move(*change);
  }
  return all;
}

}  // namespace pp
