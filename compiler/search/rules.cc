#include "compiler/search/rules.h"

#include <algorithm>
#include <cmath>

namespace pp::search {
namespace {

int Window(const Problem& problem, const std::vector<int>& cells, const Policy& policy) {
  const int all = static_cast<int>(cells.size());
  if (policy.window == Policy::kOpen || cells.empty()) return all;
  // The way from each of the device's stages to the last one and back.
  double stay = 0, work = 0, forward = 0, way = 0;
  const int micro = problem.MicroOf(cells[0]), device = problem.device[cells[0]];
  for (int s = problem.stages - 1; s >= 0; --s) {
    const int cell = problem.Cell(s, micro);
    const double own = problem.Time(cell, Part::kForward) + problem.Time(cell, Part::kBackward);
    way += own + problem.lag[MakeTask(cell, Part::kBackward)];
    if (problem.device[cell] == device) {
      stay += way;
      work += own;
      forward += problem.Time(cell, Part::kForward);
    }
    way += problem.lag[MakeTask(cell, Part::kForward)];
  }
  constexpr double kTiny = 1e-9;
  const double least = problem.tiny > 0 ? problem.tiny : 1;  // nothing takes any time
  const double flow = policy.window == Policy::kFlow
                          ? stay / std::max(work, least)
                          : 1 + std::floor((stay - work) / std::max(forward, least) + kTiny);
  const double window = std::ceil(std::max(1.0, flow * policy.factor) - kTiny);
  return window < all ? static_cast<int>(window) : all;
}

}  // namespace

Rules Imitate(const Problem& problem, const Plan& plan) {
  Rules rules = MakeRules(problem, plan, {.first = First::kForwardAlways});
  for (const auto& list : plan.lists) {
    int in_flight = 0, weights = 0;
    for (Task task : list) {
      const int cell = CellOf(task);
      if (PartOf(task) == Part::kForward) {
        CellRule& rule = rules.cells[cell];
        rule.window = ++in_flight;
        rule.weights = weights;
        rule.keep = !plan.dropped[cell];
      } else if (PartOf(task) == Part::kBackward) {
        --in_flight;
        if (problem.split[cell]) ++weights;
      } else if (PartOf(task) == Part::kWeight) {
        --weights;
      }
    }
  }
  return rules;
}

Rules MakeRules(const Problem& problem, const Plan& plan, const Policy& policy) {
  Rules rules;
  rules.cells.resize(problem.cells());
  for (const auto& list : plan.lists) {
    auto& forwards = rules.forwards.emplace_back();
    auto& backwards = rules.backwards.emplace_back();
    for (Task task : list) {
      if (PartOf(task) == Part::kForward) forwards.push_back(CellOf(task));
      if (PartOf(task) == Part::kBackward) backwards.push_back(CellOf(task));
    }
    const int window = Window(problem, forwards, policy);
    for (int cell : forwards)
      rules.cells[cell] = {.window = window,
                           .weights = problem.cells(),
                           .reserve = policy.reserve == Policy::kInputs ? window : 0,
                           .first = policy.first};
  }
  return rules;
}

}  // namespace pp::search
