#include "compiler/period.h"

#include <algorithm>
#include <cmath>

#include "schema/play/execute.h"
#include "schema/proof/body_walk.h"
#include "schema/sections.h"
#include "schema/semantics/walk.h"

namespace pp {
namespace {

constexpr int kFirstBodies = 2, kMostBodies = 64;
constexpr double kMostInstructions = 2e7;  // unrolled, beyond the first bodies

Result<Execution> ExecuteBodies(const Program& program, const CostModel& costs,
                                const OnTransport& on, int bodies) {
  const Program unrolled = Unroll(program, bodies);
  std::vector<WaitsFor> waits_for;
  PP_RETURN_IF_ERROR(WalkBodies(program, unrolled, bodies, &waits_for));
  return on.Execute(unrolled, waits_for, costs);
}

// How much later every instruction of the last body ends than in the body before it; -1 if the
// shift is not the same for all. A body waits for nothing older than the one before it, so a common
// shift persists: the steady state.
double Shift(const Program& program, const Execution& execution, int bodies) {
  const double tolerance = execution.makespan * 1e-12;  // of sums taken in different orders
  double shift = -1;
  for (int d = 0; d < program.devices; ++d) {
    const size_t length = program.lists[d].body.size();
    const std::vector<Span>& spans = execution.spans[d];
    for (size_t i = (bodies - 1) * length; i < bodies * length; ++i) {
      const double later = spans[i].end - spans[i - length].end;
      if (shift < 0) shift = later;
      if (std::abs(later - shift) > tolerance) return -1;
    }
  }
  return shift;
}

// If it takes several bodies to repeat: the mean of the later half.
double MeanShift(const Program& program, const Execution& execution, int bodies) {
  double most = 0;
  for (int d = 0; d < program.devices; ++d) {
    const size_t length = program.lists[d].body.size();
    const std::vector<Span>& spans = execution.spans[d];
    if (length == 0) continue;
    const double end = spans[bodies * length - 1].end;
    most = std::max(most, (end - spans[bodies / 2 * length - 1].end) / (bodies - bodies / 2));
  }
  return most;
}

}  // namespace

Result<double> SteadyPeriod(const Program& program, const CostModel& costs, const OnTransport& on) {
  double instructions = 0;
  for (const DeviceList& list : program.lists)
    instructions += static_cast<double>(list.body.size());
  for (int bodies = kFirstBodies;; bodies *= 2) {
    const auto execution = ExecuteBodies(program, costs, on, bodies);
    if (!execution.ok()) return execution.status();
    if (const double shift = Shift(program, *execution, bodies); shift >= 0) return shift;
    if (bodies == kMostBodies || 2 * bodies * instructions > kMostInstructions)
      return MeanShift(program, *execution, bodies);
  }
}

}  // namespace pp
