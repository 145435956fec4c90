#include "compiler/tune/drift.h"

#include <cmath>

#include "compiler/tune/replay.h"
#include "schema/semantics/cost_model.h"

namespace pp {
namespace {

constexpr int kMostRounds = 4;
constexpr double kClose = 1e-4;  // of the given time

void Scale(PerStage* times, double factor) {
  for (double& time : *times) time *= factor;
}

}  // namespace

Result<Drift> DriftUntil(const Program& plan, const std::vector<WaitsFor>& waits_for,
                         double seconds) {
  const auto costs = CostsOf(plan, plan.costs);
  PP_RETURN_IF_ERROR(costs.status());
  const auto replay = Replay::Make(plan, waits_for);
  PP_RETURN_IF_ERROR(replay.status());
  // A makespan is the longest of many paths, each of which grows linearly with the factor: between
  // two factors it is never above their chord, so that what the chord meets is never too much.
  // Where it is far too little, beside a corner, the middle helps.
  const auto largest = [&](auto&& scale) -> Result<double> {
    Status status;
    const auto makespan = [&](double factor) {
      CostModel scaled = *costs;
      scale(scaled, factor);
      const auto played = status.ok() ? replay->Makespan(scaled) : Result<double>(status);
      status = played.status();
      return played.ok() ? *played : 0;
    };
    struct Point {
      double factor, makespan;
    };
    const auto play = [&](double factor) { return Point{factor, makespan(factor)}; };
    Point low = play(1), high = play(kMostDrift);
    if (high.makespan <= seconds) low = high;
    for (int i = 0; i < kMostRounds && status.ok() && low.factor < kMostDrift &&
                    low.makespan < seconds * (1 - kClose);
         ++i) {
      low = play(low.factor + (high.factor - low.factor) * (seconds - low.makespan) /
                                  (high.makespan - low.makespan));
      const Point middle = play(std::sqrt(low.factor * high.factor));
      (middle.makespan <= seconds ? low : high) = middle;
    }
    if (!status.ok()) return status;
    return low.factor;
  };
  const auto messages = largest([](CostModel& scaled, double factor) {
    Scale(&scaled.comm, factor);
    Scale(&scaled.latency, factor);
    Scale(&scaled.post, factor);
    Scale(&scaled.bandwidth, 1 / factor);
  });
  PP_RETURN_IF_ERROR(messages.status());
  const auto reductions =
      largest([](CostModel& scaled, double factor) { Scale(&scaled.reduce, factor); });
  PP_RETURN_IF_ERROR(reductions.status());
  return Drift{*messages, *reductions};
}

}  // namespace pp
