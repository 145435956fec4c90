// A plan played again and again with other costs: what it exchanges is found once. For its time
// alone, which takes far less memory than a whole prediction (compiler/simulate.h).
#pragma once

#include <vector>

#include "schema/base/status.h"
#include "schema/play/play.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/walk.h"

namespace pp {

class Replay {
 public:
  // REQUIRES: `waits_for` from VerifyLists(plan) with kPlan; the plan has no sections, and outlives
  // this.
  static Result<Replay> Make(const Program& plan, const std::vector<WaitsFor>& waits_for);

  // Of a step. Error: a deadlock.
  Result<double> Makespan(const CostModel& costs) const;

 private:
  explicit Replay(const Program& plan) : plan_(&plan) {}

  const Program* plan_;
  play::Traffic traffic_;
  play::Streams streams_;
};

}  // namespace pp
