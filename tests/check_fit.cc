#include "tests/check_fit.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "schema/proof/verify.h"

namespace pp {

Fitted Fit(const FitCase& c, bool quick, search::Method without) {
  CompileOptions options{.scheme = c.scheme,
                         .shape = {.devices = c.devices,
                                   .microbatches = c.microbatches,
                                   .stages_per_device = c.stages_per_device},
                         .costs = c.costs};
  const auto limit = ParseMemoryLimit(c.limit);
  REQUIRE(limit.ok());
  FitReport report;
  options.fit = {.limit = *limit,
                 .report = [&](const FitReport& r) { report = r; },
                 .quick = quick,
                 .without = without};
  auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return {*program, report};
}

double PeakOf(const Program& program, const CostModel& costs, int device) {
  std::map<std::pair<int, int>, double> held;
  const double share = program.Shares()[program.StagesOf(device).front()];
  double level = 0, peak = 0;
  for (const Instruction& i : program.lists[device].body) {
    double& cell = held[{i.stage, i.micro}];
    if (i.op == Op::kForward || i.op == Op::kRecompute) {
      cell += share;
      level += share;
    }
    if (i.op == Op::kForwardDrop) {
      cell += At(costs.in, i.stage);
      level += At(costs.in, i.stage);
    }
    peak = std::max(peak, level);
    if (i.op == Op::kBackward || i.op == Op::kBackwardWeight) level -= cell;
  }
  return peak;
}

Prediction MustSimulate(const Program& program, const CostModel& costs) {
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(program, Depth::kPlan, &waits_for).message() == "");
  const auto prediction = Simulate(program, waits_for, costs);
  REQUIRE(prediction.ok());
  return *prediction;
}

double CheckFit(const FitCase& c, bool quick) {
  INFO(c.scheme << " D " << c.devices << " M " << c.microbatches << " " << c.costs << " limit "
                << c.limit);
  const Fitted fitted = Fit(c, quick);
  const CostModel costs = *ParseCosts(c.costs, fitted.program.stages);
  const std::vector<double> limits = ParseMemoryLimit(c.limit)->values;
  for (int d = 0; d < c.devices; ++d) {
    const double peak = PeakOf(fitted.program, costs, d);
    CHECK(peak <= At(limits, d) + 1e-6);
    CHECK(fitted.report.peaks[d] == Approx(peak));
  }
  const Prediction prediction = MustSimulate(fitted.program, costs);
  const double makespan = prediction.makespan;
  CHECK(makespan == Approx(fitted.report.makespan));
  for (int d = 0; d < c.devices; ++d)
    CHECK(prediction.devices[d].peak_with_inputs == Approx(fitted.report.peaks[d]));
  REQUIRE(fitted.report.lower_bound);
  CHECK(makespan >= *fitted.report.lower_bound - 1e-9);
  if (c.optimum > 0) CHECK(*fitted.report.lower_bound <= c.optimum + 1e-9);
  return makespan;
}

}  // namespace pp
