// fit-memory under a limit in bytes (--memory-limit 40GiB): the whole arena of a device must fit,
// not only its activations.
//
// What the search cannot see (weights, gradients, optimizer, values on their way, blocks between
// two sizes) is found by lowering: what a lowered plan takes beyond the activations that the search
// has counted is set aside, and the search runs again with the rest, until the lowered plan fits.
//
//   limit 300 MB   | weights .. 120 | messages 30 |  for the search 150  |
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compiler/passes/fit_memory.h"
#include "compiler/search/ledger.h"

namespace pp {
namespace {

constexpr int kAttempts = 12;

// Bytes that a micro-batch of each stage holds: what its forward read stays in its stash.
search::MemoryModel ByteMemory(const Program& program) {
  search::MemoryModel memory;
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(*program.job, s);
    const int64_t input =
        layout.targets_bytes +
        (layout.first ? layout.tokens_bytes : LayoutStage(*program.job, s - 1).act_bytes);
    const int64_t full = input + layout.stash_bytes, half = full + layout.work_bytes;
    memory.held.push_back({full, input, full, half, half});
  }
  return memory;
}

// What each device's arena holds of the lowered program besides what `memory` counts.
Status Uncounted(const Program& program, const PassContext& context,
                 const search::MemoryModel& memory, std::vector<int64_t>* bytes) {
  Program lowered = program;
  PP_RETURN_IF_ERROR(ReduceGradients(lowered, context));
  PP_RETURN_IF_ERROR(InsertComm(lowered, context));
  PP_RETURN_IF_ERROR(PlanMemory(lowered, context));
  const search::Problem problem = search::MakeProblem(program, context.costs, memory);
  const search::Plan plan = search::MakePlan(program, problem);
  for (int d = 0; d < program.devices; ++d)
    bytes->push_back(lowered.lists[d].arena_bytes - search::Peak(problem, plan, d));
  return {};
}

std::string Bytes(double bytes) {
  return bytes < 1 << 20 ? fmt::format("{:.0f}B", bytes)
                         : fmt::format("{:.2f}MiB", bytes / (1 << 20));
}

Status TooLittle(const PassContext& context, int device, double needed) {
  // Rounded up, so that it can be given back.
  const double enough = std::ceil(needed / (1 << 20) * 100) / 100 * (1 << 20);
  return Status::Invalid(
      fmt::format("--memory-limit: {} is too little for device {} ({} is the least that was found)",
                  Bytes(At(context.fit.limit.values, device)), device, Bytes(enough)));
}

// That every device has room for its part: where it seems to have none, what a plan with just
// that takes besides is set aside instead. The error names its arena.
Status MakeRoom(const Program& program, const PassContext& context, search::MemoryModel& memory) {
  search::Problem problem = search::MakeProblem(program, context.costs, memory);
  const std::vector<int64_t> smallest_limits = search::SmallestLimits(problem);
  for (int d = 0; d < program.devices; ++d) {
    const int64_t least = smallest_limits[d];
    if (least <= memory.limit[d]) continue;
    problem.memory.limit.assign(program.devices, INT64_MAX);
    problem.memory.limit[d] = least;
    Program smallest = program;
    FitOnce(smallest, std::nullopt, context, problem);
    std::vector<int64_t> uncounted;
    PP_RETURN_IF_ERROR(Uncounted(smallest, context, memory, &uncounted));
    const double limit = At(context.fit.limit.values, d);
    const auto needed = static_cast<double>(least + uncounted[d]);
    if (needed > limit) return TooLittle(context, d, needed);
    memory.limit[d] = static_cast<int64_t>(limit) - uncounted[d];
  }
  return {};
}

}  // namespace

Status FitBytes(Program& program, const PassContext& context) {
  if (!program.job) return Status::Invalid("--memory-limit: bytes need --model");
  const std::vector<double>& limits = context.fit.limit.values;
  search::MemoryModel memory = ByteMemory(program);
  memory.limit.assign(program.devices, INT64_MAX);
  std::vector<int64_t> set_aside;
  PP_RETURN_IF_ERROR(Uncounted(program, context, memory, &set_aside));
  const std::optional<Program> mario = MarioPlan(program, context);
  struct Excess {
    int device = -1;
    double over = 0;  // bytes
  } least;            // of the plans that did not fit
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (int d = 0; d < program.devices; ++d)
      memory.limit[d] = static_cast<int64_t>(At(limits, d)) - set_aside[d];
    PP_RETURN_IF_ERROR(MakeRoom(program, context, memory));
    const search::Problem problem = search::MakeProblem(program, context.costs, memory);
    Program fitted = program;
    FitReport report = FitOnce(fitted, mario, context, problem);
    std::vector<int64_t> uncounted;
    PP_RETURN_IF_ERROR(Uncounted(fitted, context, memory, &uncounted));
    Excess excess;
    for (int d = 0; d < program.devices; ++d) {
      report.peaks[d] += static_cast<double>(uncounted[d]);
      const double over = report.peaks[d] - At(limits, d);
      if (over <= 0) continue;
      if (over > excess.over) excess = {d, over};
      set_aside[d] = std::max(set_aside[d], uncounted[d]) + 1;
    }
    if (excess.over > 0) {
      if (least.device < 0 || excess.over < least.over) least = excess;
      continue;
    }
    program = std::move(fitted);
    if (context.fit.report) context.fit.report(report);
    return {};
  }
  return TooLittle(context, least.device, At(limits, least.device) + least.over);
}

}  // namespace pp
