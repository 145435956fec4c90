#include "compiler/tune/dependence.h"

#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "compiler/machine/costs.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/replay.h"

namespace pp {
namespace {

constexpr double kMostFactor = 16;
constexpr int kRounds = 5;  // of halving on a logarithmic scale: to a factor of 1.09

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

class Looker {
 public:
  Looker(const TuneOptions& options, const std::vector<Rival>& rivals)
      : options_(options), rivals_(rivals) {}

  Status Start() {
    for (const Rival& rival : rivals_) {
      auto replay = Replay::Make(rival.played.plan, rival.played.waits_for);
      PP_RETURN_IF_ERROR(replay.status());
      replays_.push_back(std::make_unique<Replay>(std::move(*replay)));
    }
    return {};
  }

  Result<Dependence> Of(const Price& price) {
    Dependence dependence{.price = price.name, .value = price.value(options_.machine)};
    for (const bool more : {false, true}) {
      auto change = Look(price, more);
      PP_RETURN_IF_ERROR(change.status());
      (more ? dependence.higher : dependence.lower) = std::move(*change);
    }
    return dependence;
  }

 private:
  using Change = std::optional<Dependence::Change>;

  // In one direction, by halving, if it changes at the end.
  Result<Change> Look(const Price& price, bool more) {
    const auto at = [&](double distance) { return At(price, more ? distance : 1 / distance); };
    double inner = 1, outer = kMostFactor;
    auto change = at(outer);
    PP_RETURN_IF_ERROR(change.status());
    for (int round = 0; round < kRounds && *change; ++round) {
      const double middle = std::sqrt(inner * outer);
      auto nearer = at(middle);
      PP_RETURN_IF_ERROR(nearer.status());
      (*nearer ? outer : inner) = middle;
      if (*nearer) change = std::move(nearer);
    }
    return change;
  }

  // The fastest rival, if it is faster than the pick by more than the error.
  Result<Change> At(const Price& price, double factor) {
    Machine machine = options_.machine;
    price.scale(machine, factor);
    double allowed = 0;
    Change change;
    for (size_t i = 0; i < rivals_.size(); ++i) {
      const auto costs = CostsOn(machine, rivals_[i].played.plan, &layouts_[price.name][factor]);
      PP_RETURN_IF_ERROR(costs.status());
      const auto time = replays_[i]->Makespan(*costs);
      PP_RETURN_IF_ERROR(time.status());
      if (i == 0) {
        allowed = *time / (1 + ModelError(options_));
      } else if (*time < allowed) {
        allowed = *time;
        change = Dependence::Change{factor, rivals_[i].candidate};
      }
    }
    return change;
  }

  const TuneOptions& options_;
  const std::vector<Rival>& rivals_;
  std::vector<std::unique_ptr<Replay>> replays_;
  std::map<std::string_view, std::map<double, Layouts>> layouts_;  // of each machine
};

}  // namespace

Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options,
                                              std::vector<Rival> rivals) {
  std::vector<Dependence> all;
  Looker looker(options, rivals);
  PP_RETURN_IF_ERROR(looker.Start());
  const int node = options.machine.node;
  for (const Price& price : kPrices) {
    const bool used = price.name == "inside" || (node > 0 && options.devices > node);
    if (options.devices == 1 || !used || price.value(options.machine) == 0) continue;
    auto dependence = looker.Of(price);
    PP_RETURN_IF_ERROR(dependence.status());
    all.push_back(std::move(*dependence));
  }
  return all;
}

}  // namespace pp
