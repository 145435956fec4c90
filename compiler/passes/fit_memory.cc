// fit-memory: the fastest plan within a memory limit. For each micro-batch and stage it chooses
// whether to keep the activation or to recompute it, and it reorders the lists.
//
//   1f1b, 4 devices, 4 micro-batches, in=0.1          --memory-limit 1.3
//   d0 | F0 F1 F2 F3 .. B0 .. B1 .. B2 .. B3     =>   d0 | F0 C1 C2 C3 .. B0 R1 B1 R2 B2 R3 B3
//   makespan 21 with 4 activations                    makespan 21 with 1 + 3 * 0.1
//
// It replaces Mario's four passes (Liu et al., 2025), which recompute all of a stage's
// micro-batches or none; the search is in compiler/search.
#include "compiler/passes/fit_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"
#include "compiler/search/bound.h"
#include "compiler/search/ledger.h"
#include "compiler/search/starts.h"
#include "compiler/search/steady.h"
#include "schema/base/background.h"

namespace pp {
namespace {

Status CheckRoom(const Program& program, const search::Problem& problem,
                 const std::vector<double>& limits) {
  const std::vector<int64_t> least = search::SmallestLimits(problem);
  for (int d = 0; d < program.devices; ++d)
    if (least[d] > problem.memory.limit[d])
      return Status::Invalid(fmt::format(
          "--memory-limit: {:g} is too little for device {} ({:g} is the least that fits)",
          At(limits, d), d, static_cast<double>(least[d]) * problem.memory.unit));
  return {};
}

// A limit above all micro-batches is no limit; most likely it is a number of bytes.
Status CheckUnit(const Program& program, const CostModel& costs,
                 const std::vector<double>& limits) {
  double most = program.microbatches;
  for (const double in : costs.in) most = std::max(most, in * program.microbatches);
  for (const double limit : limits)
    if (limit > most)
      return Status::Invalid(
          fmt::format("--memory-limit: {:.15g} activations, where {} micro-batches have at most "
                      "{:g} (that number "
                      "or less; bytes have a unit, {:.15g}B or 40GiB)",
                      limit, program.microbatches, most, limit));
  return {};
}

constexpr double kSame = 1e-9;

// Whether STEP and reductions take no time.
bool StepsAreFree(const CostModel& costs) {
  const auto free = [](const PerStage& values) {
    return std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
  };
  return free(costs.step) && free(costs.reduce);
}

}  // namespace

bool HasRoom(const search::Problem& problem) {
  const std::vector<int64_t> least = search::SmallestLimits(problem);
  return std::equal(least.begin(), least.end(), problem.memory.limit.begin(), std::less_equal());
}

bool OverlapSaves(const Program& program, const PassContext& context) {
  const Durations durations(context.costs, program);
  for (const DeviceList& list : program.lists) {
    const std::vector<bool> first = FirstHalves(list.body);
    for (size_t i = 0; i + 1 < list.body.size(); ++i) {
      const Instruction &a = list.body[i], &b = list.body[i + 1];
      if (first[i] && durations.Pair(a, b) < durations(a) + durations(b)) return true;
    }
  }
  return false;
}

search::Problem ProblemOf(const Program& program, const PassContext& context,
                          search::MemoryModel memory) {
  search::Problem problem = search::MakeProblem(program, context.costs, std::move(memory));
  if (context.fit.objective == Objective::kPeriod) search::AimAtPeriod(problem);
  return problem;
}

// With blocking messages, which take both devices' time, if they are placed.
double ScheduleTime(const Program& program, const PassContext& context) {
  const bool period = context.fit.objective == Objective::kPeriod;
  auto time_of = [&](const Program& timed, const std::vector<std::vector<Span>>& spans) {
    double longest = 0;
    for (int d = 0; d < timed.devices; ++d) {
      double begin = HUGE_VAL, end = 0;
      for (size_t i = 0; i < spans[d].size(); ++i) {
        end = std::max(end, spans[d][i].end);
        const bool computes = Info(timed.lists[d].body[i].op).lane == Lane::kCompute;
        if (computes && spans[d][i].end > spans[d][i].start)
          begin = std::min(begin, spans[d][i].start);
      }
      longest = std::max(longest, period && begin < end ? end - begin : end);
    }
    return longest;
  };
  if (program.p2p == P2p::kAsync) {
    const Durations durations(context.costs, program);
    const auto spans = IdealTimeline(program, FindMessages(program), durations);
    return spans.ok() ? time_of(program, *spans) : HUGE_VAL;
  }
  Program lists = program;
  if (!InsertComm(lists, context).ok()) return HUGE_VAL;
  std::vector<WaitsFor> waits_for;  // waits only for messages, in their own lane
  for (const DeviceList& list : lists.lists) waits_for.emplace_back(list.body.size(), -1);
  Execution execution;
  if (!Execute(lists, waits_for, context.costs, &execution).ok()) return HUGE_VAL;
  return time_of(lists, execution.spans);
}

std::vector<search::Plan> StartsOf(const Program& program, const std::vector<Program>& related,
                                   const search::Problem& problem) {
  const auto when = search::IsLarge(problem.cells()) ? kInBackground : std::launch::deferred;
  std::vector<std::future<search::Plan>> plans;
  for (const Program& other : related)
    plans.push_back(std::async(when, [&] { return search::MakePlan(other, problem); }));
  std::vector<search::Plan> starts = {search::MakePlan(program, problem)};
  for (auto& future : plans) {
    search::Plan plan = future.get();
    if (search::SameWork(problem, plan, starts[0])) starts.push_back(std::move(plan));
  }
  std::sort(starts.begin(), starts.end(),
            [](const search::Plan& a, const search::Plan& b) { return a.lists < b.lists; });
  starts.erase(
      std::unique(starts.begin(), starts.end(),
                  [](const search::Plan& a, const search::Plan& b) { return a.lists == b.lists; }),
      starts.end());
  return starts;
}

double LimitBelow(double limit) {
  constexpr double kSteps = 10;
  double octave = std::exp2(std::floor(std::log2(limit)));
  double step = std::ceil(limit / octave * kSteps * (1 - kSame)) - 1;
  if (step < kSteps) octave /= 2, step = 2 * kSteps - 1;
  return step / kSteps * octave;
}

FitReport FitOnce(Program& program, const PassContext& context, const search::Problem& problem,
                  const search::Effort& effort, double lower_bound) {
  // The search does not model blocking messages or overlap; the timeline decides.
  const auto time_of = [&](const Program& plan) {
    const bool fits = search::Fits(problem, search::MakePlan(plan, problem));
    return fits ? ScheduleTime(plan, context) : HUGE_VAL;
  };
  std::future<double> scheme_time = std::async(kInBackground, time_of, std::cref(program));
  const bool uses_related = context.fit.without != search::Method::kRelated;
  search::SearchOutcome outcome = search::Search(
      problem,
      StartsOf(program, uses_related ? context.fit.related : std::vector<Program>(), problem),
      {.effort = context.fit.quick ? search::Effort{.turns = 0} : effort,
       .seconds = context.fit.search_seconds,
       .lower_bound = lower_bound,
       .without = context.fit.without,
       .progress = context.fit.progress});
  Program best = program;
  search::SetPlan(problem, outcome.plan, best);
  double makespan = ScheduleTime(best, context);
  if (const double time = scheme_time.get(); time < makespan * (1 - kSame)) {
    best = program, makespan = time;
    outcome.plan = search::MakePlan(best, problem);
  }
  FitReport report{.makespan = makespan};
  if (!OverlapSaves(program, context)) report.lower_bound = outcome.lower_bound;
  for (int d = 0; d < program.devices; ++d)
    report.peaks.push_back(static_cast<double>(search::Peak(problem, outcome.plan, d)) *
                           problem.memory.unit);
  program = std::move(best);
  return report;
}

namespace {

// With few cells many short turns find more than few long ones, and soon: then all limits of the
// grid that may give a faster plan are searched, otherwise only two more, and none where the search
// itself plans under lower ones (search/steady.h).
constexpr int kMoreLimits = 2;
constexpr search::Effort kShortTurns = {
    .turns = 20, .share = 0.24, .starts = search::Effort::kSeveral};

// What is found under lower limits of the grid, each for itself.
class LowerLimits {
 public:
  LowerLimits(const Program& scheme, const PassContext& context, const search::Effort& effort)
      : scheme_(scheme), context_(context), effort_(effort) {
    context_.fit.search_seconds = 0;
    context_.fit.progress = nullptr;
  }

  // Replaces `program` and its report by the fastest plan of `most` limits below `limit`, if it is
  // faster: as many at once as there are processors, which changes nothing but the time. No limit
  // is searched whose bound says that it is slower.
  void Search(double limit, int most, Program* program, FitReport* report) const {
    const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    std::vector<std::future<Found>> batch;
    do {
      batch.clear();
      for (; static_cast<int>(batch.size()) < threads && most > 0; --most) {
        limit = LimitBelow(limit);
        const search::Problem problem = ProblemOf(
            scheme_, context_, search::ActivationMemory(scheme_, context_.costs, {limit}));
        if (!HasRoom(problem)) break;
        const double bound = search::LowerBound(problem);
        if (report->lower_bound && report->makespan <= bound * (1 + kSame)) break;
        batch.push_back(std::async(kInBackground, &LowerLimits::Under, this, problem, bound));
      }
      for (std::future<Found>& future : batch) {
        Found found = future.get();
        if (found.report.makespan >= report->makespan * (1 - kSame)) continue;
        found.report.lower_bound = report->lower_bound;
        *report = std::move(found.report);
        *program = std::move(found.program);
      }
    } while (!batch.empty());
  }

 private:
  struct Found {
    Program program;
    FitReport report;
  };

  Found Under(const search::Problem& problem, double bound) const {
    Found found{scheme_, {}};
    found.report = FitOnce(found.program, context_, problem, effort_, bound);
    return found;
  }

  const Program& scheme_;
  PassContext context_;
  const search::Effort effort_;
};

// Under a limit in activations. Each limit's search is the same whatever the given limit, so that
// with few cells and a lower bound no plan is slower than that of a lower limit of the grid.
Status FitActivations(Program& program, const PassContext& context, FitReport* report) {
  const std::vector<double>& limits = context.fit.limit.values;
  PP_RETURN_IF_ERROR(CheckUnit(program, context.costs, limits));
  const search::Problem problem =
      ProblemOf(program, context, search::ActivationMemory(program, context.costs, limits));
  std::future<double> bound =
      std::async(kInBackground, [&] { return search::LowerBound(problem); });
  const Program scheme = program;
  PP_RETURN_IF_ERROR(CheckRoom(program, problem, limits));
  const double lower_bound = bound.get();
  const bool few = problem.cells() <= kFewCells;
  const search::Effort effort = few ? kShortTurns : search::Effort{};
  *report = FitOnce(program, context, problem, effort, lower_bound);
  if (limits.size() > 1 || context.fit.quick ||
      context.fit.without == search::Method::kLowerLimits || search::IsLarge(problem.cells()) ||
      search::HasSteadyState(problem))
    return {};
  LowerLimits(scheme, context, effort)
      .Search(limits[0], few && report->lower_bound ? INT_MAX : kMoreLimits, &program, report);
  return {};
}

}  // namespace

Status FitMemory(Program& program, const PassContext& context) {
  const MemoryFit& fit = context.fit;
  const std::vector<double>& limits = fit.limit.values;
  if (limits.empty()) return Status::Invalid("--passes: fit-memory needs --memory-limit");
  if (limits.size() != 1 && static_cast<int>(limits.size()) != program.devices)
    return Status::Invalid(fmt::format("--memory-limit: {} numbers (1, or {}: one for each device)",
                                       limits.size(), program.devices));
  for (const DeviceList& list : program.lists)
    if (std::any_of(list.body.begin(), list.body.end(),
                    [](const Instruction& i) { return i.op == Op::kStep; }))
      return Status::Invalid(fmt::format(
          "--memory-limit: {} overlaps its steps (a scheme that ends a step before the next)",
          program.scheme));

  DropMarks(program);
  FitReport report;
  if (fit.limit.unit == MemoryLimit::kBytes) {
    PP_RETURN_IF_ERROR(FitBytes(program, context, &report));
  } else {
    PP_RETURN_IF_ERROR(FitActivations(program, context, &report));
  }
  report.whole = StepsAreFree(context.costs);
  if (fit.report) fit.report(report);
  return {};
}

}  // namespace pp
