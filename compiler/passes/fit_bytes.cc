// fit-memory under a limit in bytes (--memory-limit 40GiB): the whole arena of a device must fit,
// not only its activations.
//
// What the search cannot see (weights, gradients, optimizer, values in flight, fragmentation
// between block sizes) is found by lowering: what a lowered plan takes beyond the activations that
// the search has counted is set aside, and the search runs again with the rest, until the lowered
// plan fits.
//
//   limit 300 MB   | weights .. 120 | messages 30 |  for the search 150  |
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compiler/passes/fit_memory.h"
#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "schema/regions.h"

namespace pp {
namespace {

constexpr int kAttempts = 12, kThorough = 3;
constexpr int kRaises = 8;

// Bytes that a micro-batch of each stage holds: its stash includes the forward's input.
search::MemoryModel ByteMemory(const Program& program) {
  search::MemoryModel memory;
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(*program.job, s);
    const int64_t input =
        layout.targets_bytes +
        (layout.first ? layout.tokens_bytes : LayoutStage(*program.job, s - 1).act_bytes);
    const int64_t kept = input + layout.kept_bytes, full = kept + layout.stash_bytes;
    const int64_t half = full + layout.work_bytes;
    memory.held.push_back({full, kept, full, half, half});
  }
  return memory;
}

Result<Program> Lower(Program program, const PassContext& context) {
  for (const Pass& pass : PassesFrom(Form::kFitted)) PP_RETURN_IF_ERROR(pass.run(program, context));
  return program;
}

// What each device's arena in the lowered program holds beyond what `memory` counts.
Status Uncounted(const Program& program, const PassContext& context,
                 const search::MemoryModel& memory, std::vector<int64_t>* bytes) {
  const Result<Program> lowered = Lower(program, context);
  if (!lowered.ok()) return lowered.status();
  const search::Problem problem = ProblemOf(program, context, memory);
  const search::Plan plan = search::MakePlan(program, problem);
  for (int d = 0; d < program.devices; ++d)
    bytes->push_back(lowered->lists[d].arena_bytes - search::Peak(problem, plan, d));
  return {};
}

// What no plan can beat: each device has the limit less what every plan holds from the first step
// to the last.
Result<double> ProvedBound(const Program& program, const PassContext& context,
                           search::MemoryModel memory) {
  const Result<Program> lowered = Lower(program, context);
  if (!lowered.ok()) return lowered.status();
  const Regions regions(*lowered);
  for (int d = 0; d < program.devices; ++d) {
    int64_t always = 0;
    for (const Region& region : regions.On(d)) always += region.bytes;
    memory.limit[d] = static_cast<int64_t>(At(context.fit.limit.values, d)) - always;
  }
  return search::LowerBound(ProblemOf(program, context, memory));
}

std::string Bytes(double bytes) {
  return bytes < 1 << 20 ? fmt::format("{:.0f}B", bytes)
                         : fmt::format("{:.2f}MiB", bytes / (1 << 20));
}

// The device that lacks the most memory, and the number of bytes that would suffice for it as far
// as known.
struct Lack {
  int device = -1;  // none
  double needed = 0;
  double over = 0;

  void Consider(int d, double bytes, double limit) {
    if (bytes - limit > over) *this = {d, bytes, bytes - limit};
  }
};

// Rounded up as it is printed, so that the printed value is enough when passed back in.
double Printable(double bytes) {
  return bytes < 1 << 20 ? bytes : std::ceil(bytes / (1 << 20) * 100) / 100 * (1 << 20);
}

// Makes sure that every device has enough memory for its part: if one seems to lack some, the
// overhead of a plan with just the minimum is set aside instead. `lack`: the device that lacks the
// most.
Status MakeRoom(const Program& program, const PassContext& context, search::MemoryModel& memory,
                Lack* lack) {
  search::Problem problem = ProblemOf(program, context, memory);
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
    lack->Consider(d, needed, limit);
    memory.limit[d] = static_cast<int64_t>(limit) - uncounted[d];
  }
  return {};
}

// Replaces `program` by the plan of one search, and says what the plan lacks.
Status FitAndLower(Program& program, const std::optional<Program>& mario,
                   const PassContext& context, const search::MemoryModel& memory, double bound,
                   FitReport* report, std::vector<int64_t>* uncounted, Lack* lack) {
  const search::Problem problem = ProblemOf(program, context, memory);
  *report = FitOnce(program, mario, context, problem, bound);
  PP_RETURN_IF_ERROR(Uncounted(program, context, memory, uncounted));
  for (int d = 0; d < program.devices; ++d) {
    report->peaks[d] += static_cast<double>((*uncounted)[d]);
    lack->Consider(d, report->peaks[d], At(context.fit.limit.values, d));
  }
  return {};
}

// The fastest plan so far that fits after lowering.
struct Fastest {
  std::optional<Program> plan;
  FitReport report;

  void Consider(const Program& other, const FitReport& its_report) {
    if (plan && its_report.makespan >= report.makespan) return;
    plan = other;
    report = its_report;
  }
};

// Plans that need no search: the scheme's own, Mario's, and its kin's.
Status TakeReady(const Program& program, const std::optional<Program>& mario,
                 const PassContext& context, const search::MemoryModel& memory, double bound,
                 Fastest* fastest) {
  std::vector<Program> plans = {program};
  if (mario) plans.push_back(*mario);
  search::Problem problem = ProblemOf(program, context, memory);
  for (const search::Plan& start : StartsOf(program, context.fit.kin, problem)) {
    plans.push_back(program);
    search::SetPlan(problem, start, plans.back());
  }
  for (const Program& plan : plans) {
    problem = ProblemOf(plan, context, memory);
    std::vector<int64_t> uncounted;
    PP_RETURN_IF_ERROR(Uncounted(plan, context, memory, &uncounted));
    FitReport report{.makespan = ScheduleTime(plan, context)};
    if (!OverlapSaves(plan, context)) report.lower_bound = bound;
    bool fits = true;
    for (int d = 0; d < program.devices; ++d) {
      report.peaks.push_back(static_cast<double>(
          search::Peak(problem, search::MakePlan(plan, problem), d) + uncounted[d]));
      fits &= report.peaks[d] <= At(context.fit.limit.values, d);
    }
    if (fits) fastest->Consider(plan, report);
  }
  return {};
}

// Searches quickly, with more and more set aside, until a plan fits; then thoroughly, a few times
// at most, until one fits again. `lack`: of the plan that lacked least, if none fits.
Status Fit(Program& program, const PassContext& full_context, FitReport* report, Lack* lack) {
  PassContext context = full_context;
  context.fit.search_seconds = 0;
  context.fit.quick = true;
  const std::vector<double>& limits = context.fit.limit.values;
  search::MemoryModel memory = ByteMemory(program);
  memory.limit.assign(program.devices, INT64_MAX);
  std::vector<int64_t> set_aside;
  PP_RETURN_IF_ERROR(Uncounted(program, context, memory, &set_aside));
  const std::optional<Program> mario = MarioPlan(program, context);
  const Result<double> bound = ProvedBound(program, context, memory);
  if (!bound.ok()) return bound.status();
  Fastest fastest;
  PP_RETURN_IF_ERROR(TakeReady(program, mario, context, memory, *bound, &fastest));
  Lack least;
  int thorough = 0;
  for (int attempt = 0; attempt < kAttempts && thorough < kThorough; ++attempt) {
    thorough += !context.fit.quick;
    for (int d = 0; d < program.devices; ++d)
      memory.limit[d] = static_cast<int64_t>(At(limits, d)) - set_aside[d];
    *lack = {};
    PP_RETURN_IF_ERROR(MakeRoom(program, context, memory, lack));
    if (lack->device >= 0) break;
    Program fitted = program;
    std::vector<int64_t> uncounted;
    PP_RETURN_IF_ERROR(
        FitAndLower(fitted, mario, context, memory, *bound, report, &uncounted, lack));
    if (lack->device < 0) {
      fastest.Consider(fitted, *report);
      if (!context.fit.quick) break;
      context.fit.quick = false;
      context.fit.search_seconds = full_context.fit.search_seconds;
      continue;
    }
    if (least.device < 0 || lack->over < least.over) least = *lack;
    for (int d = 0; d < program.devices; ++d)
      if (report->peaks[d] > At(limits, d)) set_aside[d] = std::max(set_aside[d], uncounted[d]) + 1;
  }
  if (least.device >= 0) *lack = least;
  if (!fastest.plan) return {};
  *report = std::move(fastest.report);
  program = std::move(*fastest.plan);
  *lack = {};
  return {};
}

// Raises the insufficient limit until the value that the error will name has been seen to fit. A
// single limit holds for all devices; of several, only the one that is named is raised.
Status TryMore(const Program& program, const PassContext& context, Lack* lack) {
  PassContext more = context;
  more.fit.search_seconds = 0;
  more.fit.progress = nullptr;
  std::vector<double>& limits = more.fit.limit.values;
  for (int raise = 0; raise < kRaises; ++raise) {
    limits[limits.size() == 1 ? 0 : lack->device] = Printable(lack->needed);
    Program plan = program;
    FitReport report;
    Lack next;
    PP_RETURN_IF_ERROR(Fit(plan, more, &report, &next));
    if (next.device < 0 || (limits.size() > 1 && next.device != lack->device)) break;
    *lack = next;
  }
  return {};
}

}  // namespace

Status FitBytes(Program& program, const PassContext& context, FitReport* report) {
  if (!program.job) return Status::Invalid("--memory-limit: bytes need --model");
  Lack lack;
  PP_RETURN_IF_ERROR(Fit(program, context, report, &lack));
  if (lack.device >= 0) {
    PP_RETURN_IF_ERROR(TryMore(program, context, &lack));
    return Status::Invalid(
        fmt::format("--memory-limit: {} is too little for device {} ({} is the least that was "
                    "found)",
                    Bytes(At(context.fit.limit.values, lack.device)), lack.device,
                    Bytes(Printable(lack.needed))));
  }
  return {};
}

}  // namespace pp
