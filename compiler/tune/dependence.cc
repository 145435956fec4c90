#include "compiler/tune/dependence.h"

#include <cmath>
#include <future>
#include <utility>

#include "compiler/machine/costs.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/replay.h"
#include "schema/base/background.h"

namespace pp {
namespace {

constexpr double kDistances[] = {4, 16};
constexpr int kRounds = 3;  // of halving on a logarithmic scale: to a factor of 1.19

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

class Looker {
 public:
  Looker(const TuneOptions& options, const Played& pick, const Replay& replay,
         const FindFaster& find)
      : options_(options), pick_(pick), replay_(replay), find_(find) {}

  // Up (1) or down (-1), until the pick changes; then nearer by halving. The farther, the longer a
  // search takes.
  Result<Change> Look(const Price& price, int way) const {
    const auto at = [&](double distance) { return At(price, std::pow(distance, way)); };
    double inner = 1, outer = 1;
    Result<Change> change = Change();
    for (const double next : kDistances) {
      inner = std::exchange(outer, next);
      change = at(outer);
      if (!change.ok() || *change) break;
    }
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
  // The fastest of all plans there, if it is faster than the pick by more than the error.
  Result<Change> At(const Price& price, double factor) const {
    TuneOptions there = options_;
    there.progress = nullptr;
    there.mario = false;  // which take long
    price.scale(there.machine, factor);
    const auto costs = CostsOn(there.machine, pick_.plan);
    PP_RETURN_IF_ERROR(costs.status());
    const auto time = replay_.Makespan(*costs);
    PP_RETURN_IF_ERROR(time.status());
    auto fastest = find_(there, *time / (1 + ModelError(options_)));
    if (!fastest) return Change();
    const double saves = 1 - fastest->seconds / *time;
    return Change({.factor = factor, .saves = saves, .pick = std::move(*fastest)});
  }

  const TuneOptions& options_;
  const Played& pick_;
  const Replay& replay_;
  const FindFaster& find_;
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
        return Looker(options, pick, *replay, find).Look(price, way);
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
