// fit-memory under a limit in bytes (--memory-limit 40GiB): all that a device holds must fit, not
// only its activations. With a model that is its arena, without one what is alive as the costs have
// it (semantics/alive.h).
//
// The search counts activations. Weights, gradients and optimizer are set aside for it; what it
// cannot see (values in flight, fragmentation between block sizes) is found by lowering: plans are
// searched under the limits of a grid up to the given one, and the fastest is taken that, lowered,
// fits the given one.
//
//   limit 300 MB   | weights .. 120 | for the search 180 |            a plan of 312 MB
//         280 MB   | weights .. 120 | for the search 160 |            a plan of 290 MB: fits
//
// Where none does, what those plans took beyond their activations is set aside, too, until one
// fits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <optional>
#include <thread>

#include "compiler/passes/fit_memory.h"
#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "schema/base/background.h"
#include "schema/semantics/alive.h"
#include "schema/semantics/extents.h"
#include "schema/semantics/regions.h"

namespace pp {
namespace {

// The limits that are tried at most, and the number of plans that fit which are compared.
constexpr int kTries = 8, kCompared = 3;
constexpr int kAttempts = 12;
constexpr int kRaises = 8;
constexpr double kGiB = int64_t{1} << 30;

// The local search for each limit.
search::Effort EffortFor(const search::Problem& problem) {
  return {.turns = 2,
          .share = problem.cells() <= kFewCells ? 0.75 : 0.5,
          .starts = search::Effort::kSeveral};
}

// Bytes that a micro-batch of each stage and shape holds: its stash includes the forward's input.
search::MemoryModel ByteMemory(const Program& program, const CostModel& costs) {
  search::MemoryModel memory;
  const std::optional<Extents> extents =
      program.job ? std::optional<Extents>(program) : std::nullopt;
  for (int s = 0; s < program.stages; ++s) {
    if (!program.job) {
      const auto bytes = [&](Kind kind) { return static_cast<int64_t>(BytesOf(costs, kind, s)); };
      const int64_t full = bytes(Kind::kStash), half = bytes(Kind::kWork);
      memory.held.push_back({full, bytes(Kind::kInput), full, half, half});
      continue;
    }
    for (int shape = 0; shape < program.shapes(); ++shape) {
      const StageLayout& layout = extents->Of(s, shape);
      const int64_t input = layout.targets_bytes +
                            (s == 0 ? layout.tokens_bytes : extents->Of(s - 1, shape).act_bytes);
      const int64_t kept = input + layout.kept_bytes, full = kept + layout.stash_bytes;
      const int64_t half = full + layout.work_bytes;
      memory.held.push_back({full, kept, full, half, half});
    }
  }
  return memory;
}

Result<Program> Lower(Program program, const PassContext& context) {
  for (const Pass& pass : PassesFrom(Form::kFitted)) PP_RETURN_IF_ERROR(pass.run(program, context));
  return program;
}

// What each device holds at most in the lowered program beyond what `memory` counts.
Status Uncounted(const Program& program, const PassContext& context,
                 const search::MemoryModel& memory, std::vector<int64_t>* bytes) {
  const Result<Program> lowered = Lower(program, context);
  if (!lowered.ok()) return lowered.status();
  const search::Problem problem = ProblemOf(program, context, memory);
  const search::Plan plan = search::MakePlan(program, problem);
  const AliveBytes alive(*lowered, context.costs);
  for (int d = 0; d < program.devices; ++d) {
    const int64_t most = program.job ? lowered->lists[d].arena_bytes : alive.MostOn(d).sum;
    bytes->push_back(most - search::Peak(problem, plan, d));
  }
  return {};
}

// What every plan holds on each device from the first step to the last.
Result<std::vector<int64_t>> AlwaysHeld(const Program& program, const PassContext& context) {
  const Result<Program> lowered = Lower(program, context);
  if (!lowered.ok()) return lowered.status();
  const Regions regions(*lowered);
  const AliveBytes alive(*lowered, context.costs);
  std::vector<int64_t> always;
  for (int d = 0; d < program.devices; ++d) {
    always.push_back(program.job ? 0 : alive.Always(d));
    for (const Region& region : regions.On(d)) always[d] += region.bytes;
  }
  return always;
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
    FitOnce(smallest, context, problem, EffortFor(problem), search::LowerBound(problem));
    std::vector<int64_t> uncounted;
    PP_RETURN_IF_ERROR(Uncounted(smallest, context, memory, &uncounted));
    const double limit = At(context.fit.limit.values, d);
    const auto needed = static_cast<double>(least + uncounted[d]);
    lack->Consider(d, needed, limit);
    memory.limit[d] = static_cast<int64_t>(limit) - uncounted[d];
  }
  return {};
}

// The plan of one search, and what it takes, lowered.
struct Found {
  Program plan;
  FitReport report;
  std::vector<int64_t> uncounted;  // by device
  std::vector<bool> over;          // by device: whether it takes more than its limit
  Lack lack;
};

// `memory`: with the limits to search under; those of the context are to be kept.
Result<Found> FitAndLower(const Program& program, const PassContext& context,
                          const search::MemoryModel& memory, double bound) {
  Found found{program, {}, {}, {}, {}};
  const search::Problem problem = ProblemOf(program, context, memory);
  found.report = FitOnce(found.plan, context, problem, EffortFor(problem), bound);
  PP_RETURN_IF_ERROR(Uncounted(found.plan, context, memory, &found.uncounted));
  for (int d = 0; d < program.devices; ++d) {
    double& peak = found.report.peaks[d];
    peak += static_cast<double>(found.uncounted[d]);
    const double limit = At(context.fit.limit.values, d);
    found.over.push_back(peak > limit);
    found.lack.Consider(d, peak, limit);
  }
  return found;
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

// The program after Mario's four passes, with many cells the first three; nothing if they do not
// apply.
std::optional<Program> MarioPlanOf(Program plan, const PassContext& context) {
  // The last pass tries one move after the other; the search's polishing does as much at once.
  const bool large = search::IsLarge(plan.stages * plan.microbatches);
  for (const Pass& pass : MarioPasses())
    if (!(large && pass.run == PreposeForward) && !pass.run(plan, context).ok())
      return std::nullopt;
  return plan;
}

// Plans that need no search: the scheme's own, Mario's, and those of related schemes.
Status TakeReady(const Program& program, const PassContext& context,
                 const search::MemoryModel& memory, double bound, Fastest* fastest) {
  std::vector<Program> plans = {program};
  if (auto plan = MarioPlanOf(program, context)) plans.push_back(std::move(*plan));
  search::Problem problem = ProblemOf(program, context, memory);
  for (const search::Plan& start : StartsOf(program, context.fit.related, problem)) {
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

// The limits to try, by device: of one for all those of the grid of GiB that are not above it;
// several are lowered together.
std::vector<std::vector<double>> TriesBelow(const std::vector<double>& limits) {
  const bool one = limits.size() == 1;
  constexpr double kJustAbove = 1 + 1e-6;
  std::vector<std::vector<double>> tries;
  double part = (one ? limits[0] / kGiB : 1) * kJustAbove;
  for (int i = 0; i < kTries; ++i) {
    part = LimitBelow(part);
    std::vector<double>& tried = tries.emplace_back(limits);
    for (double& limit : tried) limit = one ? part * kGiB : part * limit;
  }
  return tries;
}

class BytesFitter {
 public:
  BytesFitter(const Program& program, const PassContext& context)
      : program_(program),
        context_(context),
        limits_(context.fit.limit.values),
        memory_(ByteMemory(program, context.costs)) {
    memory_.limit.assign(program.devices, INT64_MAX);
  }

  // `lack`: of the plan that lacked least, if none fits; then `program` and `report` stay.
  Status Run(Program* program, FitReport* report, Lack* lack) {
    const auto always = AlwaysHeld(program_, context_);
    if (!always.ok()) return always.status();
    SetAside(limits_, *always);
    bound_ = search::LowerBound(ProblemOf(program_, context_, memory_));
    PP_RETURN_IF_ERROR(TakeReady(program_, context_, memory_, bound_, &fastest_));
    std::vector<double> best_limits;
    PP_RETURN_IF_ERROR(Compare(*always, &best_limits));
    if (context_.fit.search_seconds > 0 && !best_limits.empty()) {
      SetAside(best_limits, *always);
      PP_RETURN_IF_ERROR(Take(FitAndLower(program_, context_, memory_, bound_)));
    }
    if (!fastest_.plan) PP_RETURN_IF_ERROR(Squeeze(*always, lack));
    if (!fastest_.plan) return {};
    *lack = {};
    *report = std::move(fastest_.report);
    *program = std::move(*fastest_.plan);
    return {};
  }

 private:
  void SetAside(const std::vector<double>& limits, const std::vector<int64_t>& bytes) {
    for (int d = 0; d < program_.devices; ++d)
      memory_.limit[d] = static_cast<int64_t>(At(limits, d)) - bytes[d];
  }

  // The plans of the grid's limits, each of fixed work: as many at once as there are processors,
  // which changes nothing but the time. `best_limits`: where the fastest one is.
  Status Compare(const std::vector<int64_t>& always, std::vector<double>* best_limits) {
    PassContext context = context_;
    context.fit.search_seconds = 0;
    context.fit.progress = nullptr;
    const int most = context.fit.quick ? 1 : kCompared;
    const size_t at_once =
        context.fit.quick ? 1 : std::max(1u, std::thread::hardware_concurrency());
    const std::vector<std::vector<double>> tries = TriesBelow(limits_);
    std::vector<std::future<Result<Found>>> batch;
    int fitting = 0;
    for (size_t begin = 0; begin < tries.size() && !IsOptimal(); begin += batch.size()) {
      batch.clear();
      for (size_t i = begin; i < tries.size() && batch.size() < at_once; ++i) {
        SetAside(tries[i], always);
        if (!HasRoom(ProblemOf(program_, context, memory_))) break;
        const auto fit = [this, &context, memory = memory_] {
          return FitAndLower(program_, context, memory, bound_);
        };
        batch.push_back(std::async(kInBackground, fit));
      }
      for (size_t i = 0; i < batch.size(); ++i) {
        if (fitting == most || IsOptimal()) return {};
        const double before = fastest_.plan ? fastest_.report.makespan : HUGE_VAL;
        const Result<Found> found = batch[i].get();
        PP_RETURN_IF_ERROR(Take(found));
        if (found->lack.device >= 0) continue;
        if (fitting++ == 0 || fastest_.report.makespan < before) *best_limits = tries[begin + i];
      }
      if (batch.size() < at_once) break;
    }
    return {};
  }

  // With more and more set aside.
  Status Squeeze(std::vector<int64_t> set_aside, Lack* least) {
    PassContext context = context_;
    context.fit.search_seconds = 0;
    context.fit.quick = true;
    for (int attempt = 0; attempt < kAttempts && !fastest_.plan; ++attempt) {
      SetAside(limits_, set_aside);
      Lack lack;
      PP_RETURN_IF_ERROR(MakeRoom(program_, context, memory_, &lack));
      const bool has_room = lack.device < 0;
      if (has_room) {
        const Result<Found> found = FitAndLower(program_, context, memory_, bound_);
        PP_RETURN_IF_ERROR(Take(found));
        lack = found->lack;
        for (int d = 0; d < program_.devices; ++d)
          if (found->over[d]) set_aside[d] = std::max(set_aside[d], found->uncounted[d]) + 1;
      }
      if (least->device < 0 || lack.over < least->over) *least = lack;
      if (!has_room) return {};
    }
    return {};
  }

  Status Take(const Result<Found>& found) {
    if (!found.ok()) return found.status();
    if (found->lack.device < 0) fastest_.Consider(found->plan, found->report);
    return {};
  }
  bool IsOptimal() const { return fastest_.plan && fastest_.report.makespan <= bound_; }

  const Program& program_;
  const PassContext& context_;
  const std::vector<double>& limits_;
  search::MemoryModel memory_;
  double bound_ = 0;
  Fastest fastest_;
};

// Raises the insufficient limit, some times at most, until the value that the error will name has
// been seen to fit. A single limit holds for all devices; of several, only the one that is named is
// raised.
Status TryMore(const Program& program, const PassContext& context, Lack* lack) {
  PassContext more = context;
  more.fit.search_seconds = 0;
  more.fit.quick = true;
  more.fit.progress = nullptr;
  std::vector<double>& limits = more.fit.limit.values;
  for (int raise = 0; raise < kRaises; ++raise) {
    limits[limits.size() == 1 ? 0 : lack->device] = Printable(lack->needed);
    Program plan = program;
    FitReport report;
    Lack next;
    PP_RETURN_IF_ERROR(BytesFitter(program, more).Run(&plan, &report, &next));
    if (next.device < 0 || (limits.size() > 1 && next.device != lack->device)) break;
    *lack = next;
  }
  return {};
}

}  // namespace

Status FitBytes(Program& program, const PassContext& context, FitReport* report) {
  if (!program.job && !CountsBytes(context.costs))
    return Status::Invalid(
        "--memory-limit: bytes need --model (or what stages hold: --costs stash=40MiB,...)");
  Lack lack;
  PP_RETURN_IF_ERROR(BytesFitter(program, context).Run(&program, report, &lack));
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
