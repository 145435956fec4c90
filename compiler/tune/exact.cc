#include "compiler/tune/exact.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "compiler/simulate.h"
#include "compiler/tune/replay.h"
#include "schema/model/layout.h"
#include "schema/model/operators.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"

namespace pp {
namespace {

double ArenaOf(const Program& program) {
  int64_t most = 0;
  for (const DeviceList& list : program.lists) most = std::max(most, list.arena_bytes);
  return static_cast<double>(most);
}

// Of the instructions that count, on average over the devices.
template <typename Counts>
double MeanBusyTime(const Program& program, const CostModel& costs, Counts counts) {
  const Durations durations(costs, program);
  double busy = 0;
  for (const DeviceList& list : program.lists) {
    std::vector<Instruction> some;
    std::copy_if(list.body.begin(), list.body.end(), std::back_inserter(some),
                 [&](const Instruction& i) { return counts(i.op); });
    busy += BusyTime(some, durations);
  }
  return busy / program.devices;
}

// Of what the makespan is longer by than without messages, and without reductions either, the
// rest computes, updates weights or waits.
Result<Parts> PartsOf(const Program& program, const Replay& replay, CostModel costs,
                      double makespan) {
  Parts parts;
  parts.optimizer = MeanBusyTime(program, costs, [](Op op) { return op == Op::kStep; });
  costs = Scaled(std::move(costs), CostPart::kMessages, 0);
  const auto quiet = replay.Makespan(costs);
  PP_RETURN_IF_ERROR(quiet.status());
  costs = Scaled(std::move(costs), CostPart::kReductions, 0);
  const auto alone = replay.Makespan(costs);
  PP_RETURN_IF_ERROR(alone.status());
  parts.compute = MeanBusyTime(program, costs, [](Op op) { return op != Op::kStep; });
  parts.messages = makespan - *quiet;
  parts.reductions = *quiet - *alone;
  parts.bubble = std::max(0.0, *alone - parts.compute - parts.optimizer);
  return parts;
}

}  // namespace

std::optional<Exact> ExactOf(CompileOptions compile, double memory, Played* kept) {
  compile.proves = false;
  compile.leaves = Form::kPlan;
  auto program = Compile(compile);
  if (!program.ok()) return std::nullopt;
  Exact exact{.bytes = ArenaOf(*program)};
  if (exact.bytes > memory) return exact;
  const auto costs = CostsOf(*program);
  if (!costs.ok()) return std::nullopt;
  DropRoutines(&*program);
  std::vector<WaitsFor> waits_for;
  if (!VerifyLists(*program, Depth::kPlan, &waits_for).ok()) return std::nullopt;
  const auto replay = Replay::Make(*program, waits_for);
  const auto makespan = replay.ok() ? replay->Makespan(*costs) : Result<double>(replay.status());
  if (!makespan.ok()) return std::nullopt;
  exact.seconds = *makespan;
  const double busy = MeanBusyTime(*program, *costs, [](Op) { return true; });
  if (*makespan > 0) exact.bubble = 1 - busy / *makespan;
  if (kept == nullptr) return exact;
  const auto parts = PartsOf(*program, *replay, *costs, *makespan);
  if (!parts.ok()) return std::nullopt;
  exact.parts = *parts;
  *kept = {std::move(*program), std::move(waits_for)};
  return exact;
}

double ModelOperations(const Program& program) {
  const Job& job = *program.job;
  double operations = 0;  // per token
  for (int s = 0; s < program.stages; ++s)
    for (const StageOperator& placed : LayoutStage(job, s).operators) {
      const Operator& op = placed.op;
      if (op.kind == OperatorKind::kLinear)
        operations += (op.parameters[0].trainable ? 6 : 4) * MultiplyAdds(op, job.sequence_length) +
                      6 * AdapterMultiplyAdds(op);
      if (op.kind == OperatorKind::kAttention)
        operations += 12 * static_cast<double>(op.out) * job.sequence_length;
    }
  return operations * static_cast<double>(job.tokens()) * program.microbatches * program.replicas *
         job.tp;
}

}  // namespace pp
