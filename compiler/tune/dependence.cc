#include "compiler/tune/dependence.h"

#include <cmath>
#include <optional>
#include <utility>

#include "compiler/machine/costs.h"
#include "compiler/tune/pick.h"
#include "compiler/tune/replay.h"

namespace pp {
namespace {

constexpr double kMostFactor = 16;
constexpr int kRounds = 2;  // of halving, on a logarithmic scale, between powers of four

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
  Looker(const TuneOptions& options, const Program& plan, const Replay& replay, double fastest)
      : options_(options), plan_(plan), replay_(replay), fastest_(fastest) {}

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

  // In one direction: the first power of four where it changes, then nearer to 1.
  Result<Change> Look(const Price& price, bool more) {
    double inner = 1;
    for (double outer = 4; outer <= kMostFactor; outer *= 4) {
      auto change = At(price, more ? outer : 1 / outer);
      PP_RETURN_IF_ERROR(change.status());
      if (!*change) {
        inner = outer;
        continue;
      }
      for (int round = 0; round < kRounds; ++round) {
        const double middle = std::sqrt(inner * outer);
        auto nearer = At(price, more ? middle : 1 / middle);
        PP_RETURN_IF_ERROR(nearer.status());
        (*nearer ? outer : inner) = middle;
        if (*nearer) change = std::move(nearer);
      }
      return change;
    }
    return Change();
  }

  Result<Change> At(const Price& price, double factor) {
    TuneOptions options = options_;
    options.progress = nullptr;
    price.scale(options.machine, factor);
    const auto costs = CostsOn(options.machine, plan_);
    PP_RETURN_IF_ERROR(costs.status());
    const auto time = replay_.Makespan(*costs);
    PP_RETURN_IF_ERROR(time.status());
    const double allowed = *time / (1 + ModelError(options));
    // With a slower link no plan is faster than the fastest is now.
    if (factor < 1 && allowed <= fastest_) return Change();
    auto other = FastestOn(options);
    if (!other || other->seconds >= allowed) return Change();
    return Change(Dependence::Change{factor, std::move(*other)});
  }

  const TuneOptions& options_;
  const Program& plan_;
  const Replay& replay_;
  const double fastest_;
};

}  // namespace

Result<std::vector<Dependence>> DependencesOf(const TuneOptions& options, const Program& plan,
                                              const std::vector<WaitsFor>& waits_for,
                                              double fastest) {
  std::vector<Dependence> all;
  const auto replay = Replay::Make(plan, waits_for);
  PP_RETURN_IF_ERROR(replay.status());
  Looker looker(options, plan, *replay, fastest);
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
