// The engines of timelines agree. Over a grid of schemes, sizes, passes and costs, where nothing
// but compute instructions and messages takes time:
//
//   compiler/play   the ideal timeline of a list without messages
//   schema/play     the same list with its messages, executed: the same ends, bit by bit
//   search/clock    the search's tasks
//
// And what rules play, the weight halves' filler and the search's dispatcher, takes as long as the
// lists that they leave.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "compiler/compile.h"
#include "compiler/play/ideal.h"
#include "compiler/search/clock.h"
#include "compiler/search/dispatch.h"
#include "schema/play/execute.h"
#include "schema/proof/verify.h"
#include "schema/sections.h"

namespace pp {
namespace {

// The engines add the same numbers; where not in the same order, they differ by rounding.
bool SameTime(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(a)); }

// A plan on its way: before and after its messages are placed.
struct Stages {
  Program before, after;
};
Result<Stages> CompileStages(const CompileOptions& options) {
  Stages stages;
  const auto plan =
      Compile(options, {.end = [&](std::string_view name, const Program& program, double) {
                if (name == "reduce-gradients") stages.before = program;
                if (name == "insert-comm") stages.after = program;
              }});
  if (!plan.ok()) return plan.status();
  return stages;
}

bool Computes(const Instruction& i) {
  return i.micro >= 0 && Info(i.op).lane == Lane::kCompute && i.op != Op::kWait;
}

// Those of the instructions that compute, in their order.
std::vector<Span> Computing(const std::vector<Instruction>& list, const std::vector<Span>& spans) {
  std::vector<Span> computing;
  for (size_t i = 0; i < list.size(); ++i)
    if (Computes(list[i])) computing.push_back(spans[i]);
  return computing;
}

Spans MustPlay(const Program& program, const CostModel& costs) {
  auto spans = IdealTimeline(program, FindMessages(program), Durations(costs, program));
  REQUIRE(spans.ok());
  return std::move(*spans);
}

void CheckExecution(const Program& before, const Spans& ideal, const Program& after,
                    const CostModel& costs) {
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(after, Depth::kLists, &waits_for).ok());
  Execution execution;
  REQUIRE(Execute(after, waits_for, costs, &execution).ok());
  for (int d = 0; d < before.devices; ++d) {
    const auto played = Computing(before.lists[d].body, ideal[d]);
    const auto executed = Computing(after.lists[d].body, execution.spans[d]);
    REQUIRE(played.size() == executed.size());
    for (size_t i = 0; i < played.size(); ++i) {
      if (played[i].end != executed[i].end || !SameTime(played[i].start, executed[i].start))
        FAIL("device " << d << ", compute instruction " << i << ": " << played[i].start << " to "
                       << played[i].end << ", executed " << executed[i].start << " to "
                       << executed[i].end);
    }
  }
}

// REQUIRES: no message waits for another one, and no instructions overlap: the clock does not know
// of either.
void CheckClock(const Program& program, const Spans& ideal, const CostModel& costs) {
  const search::Problem problem = search::MakeProblem(
      program, costs, search::ActivationMemory(program, costs, {double(program.microbatches)}));
  const search::Plan plan = search::MakePlan(program, problem);
  search::Clock clock(problem);
  REQUIRE(SameTime(clock.Earliest(plan), MakespanOf(ideal)));
  for (int d = 0; d < program.devices; ++d) {
    std::vector<Span> played;
    for (size_t i = 0; i < ideal[d].size(); ++i)
      if (const Instruction& at = program.lists[d].body[i]; Computes(at) && at.op != Op::kLoad)
        played.push_back(ideal[d][i]);
    REQUIRE(played.size() == plan.lists[d].size());
    for (size_t i = 0; i < played.size(); ++i) {
      const search::Task task = plan.lists[d][i];
      if (!SameTime(played[i].start, clock.start(task)) ||
          !SameTime(played[i].end, clock.end(task)))
        FAIL("device " << d << ", task " << i << ": " << played[i].start << " to " << played[i].end
                       << ", by the clock " << clock.start(task) << " to " << clock.end(task));
    }
  }
  search::Dispatcher dispatcher(problem);
  const search::Rules rules = search::MakeRules(problem, plan, {});
  if (!dispatcher.MayFollow(rules)) return;
  const double makespan = dispatcher.Run(rules, kNever);
  if (makespan != kNever) CHECK(SameTime(clock.Earliest(dispatcher.plan()), makespan));
}

// Of a scheme with whole backwards, which are split here.
void CheckFiller(Program program, const CostModel& costs) {
  for (DeviceList& list : program.lists)
    for (Instruction& i : list.body)
      if (i.op == Op::kBackward) i.op = Op::kBackwardInput;
  for (double least : {0.0, 1.0}) {
    auto filled = FillWeights(program, FindMessages(program), Durations(costs, program),
                              {program.microbatches, least});
    REQUIRE(filled.ok());
    Program with = program;
    for (int d = 0; d < program.devices; ++d) with.lists[d].body = filled->lists[d];
    CHECK(filled->makespan == MakespanOf(MustPlay(with, costs)));
  }
}

bool Has(const Program& program, bool (*test)(const Instruction&)) {
  return std::any_of(program.lists.begin(), program.lists.end(), [&](const DeviceList& list) {
    return std::any_of(list.body.begin(), list.body.end(), test);
  });
}

// False: the scheme has halves of backwards, which the passes do not change.
bool CheckPlan(const CompileOptions& options) {
  INFO(options.scheme << " D " << options.shape.devices << " M " << options.shape.microbatches
                      << " V " << options.shape.stages_per_device << " --passes '" << options.passes
                      << "' --costs " << options.costs);
  const auto stages = CompileStages(options);
  if (!stages.ok() && !options.passes.empty()) return false;
  REQUIRE(stages.status().message() == "");
  const auto& [before, after] = *stages;
  // Messages between steps that overlap are placed by other costs.
  if (before.overlaps) return false;
  const auto costs = ParseCosts(options.costs, before.stages);
  REQUIRE(costs.ok());
  const Spans ideal = MustPlay(before, *costs);
  CheckExecution(before, ideal, after, *costs);
  const bool overlaps = Has(before, [](const Instruction& i) { return i.overlap; });
  const bool halves = Has(before, [](const Instruction& i) { return i.op == Op::kBackwardInput; });
  if (!overlaps) CheckClock(before, ideal, *costs);
  if (!overlaps && !halves) CheckFiller(before, *costs);
  return true;
}

}  // namespace

TEST_CASE("lists without and with messages, and the search's clock, tell the same times") {
  // A message takes less time than any instruction, so that none waits for another one.
  const char* costs[] = {"f=1,b=2", "f=1,b=2.5,r=0.75,comm=0.125,latency=0.5",
                         "f=1.5,b=2,bi=1,bw=1.25,comm=0.25,latency=3"};
  int plans = 0;
  for (const Scheme& scheme : Schemes())
    for (int devices : {1, 2, 3, 4, 8})
      for (int micros : {1, 2, 4, 6, 8, 16})
        for (int parts : {1, 2, 3, 4})
          for (const char* passes : {"", "mario", "split-backward"})
            for (const char* cost : costs) {
              const Shape shape{
                  .devices = devices, .microbatches = micros, .stages_per_device = parts};
              const bool fixed = scheme.parts == Scheme::kFixed;
              if ((fixed && parts != scheme.stages_per_device) || !scheme.check(shape).ok())
                continue;
              CompileOptions options{.scheme = std::string(scheme.name), .shape = shape};
              options.passes = passes;
              options.costs = cost;
              plans += CheckPlan(options);
            }
  CHECK(plans > 1000);
}

TEST_CASE("forwards that are preposed never make a plan slower, however long messages take") {
  int faster = 0;
  for (const char* scheme : {"1f1b", "gpipe", "interleaved", "chimera", "hanayo"})
    for (const Shape& shape : {Shape{2, 4, 0}, Shape{4, 8, 0}, Shape{8, 16, 0}})
      for (const std::string passes :
           {"apply-checkpoint", "apply-checkpoint,overlap-recompute,remove-redundancy"})
        for (const char* cost :
             {"f=1,b=2", "f=1,b=2,comm=0.5", "f=1,b=2,comm=2.5", "f=2,b=3,r=1,latency=1,comm=1"}) {
          CompileOptions options{.scheme = scheme, .shape = shape};
          options.costs = cost;
          const auto makespan = [&](const std::string& list) {
            options.passes = list;
            const auto stages = CompileStages(options);
            INFO(stages.status().message());
            REQUIRE(stages.ok());
            return MakespanOf(MustPlay(stages->before, *ParseCosts(cost, stages->before.stages)));
          };
          const double before = makespan(passes), after = makespan(passes + ",prepose-forward");
          INFO(scheme << " " << shape.devices << " " << passes << " " << cost);
          CHECK(after <= before * (1 + 1e-9));
          faster += after < before * (1 - 1e-9);
        }
  CHECK(faster > 50);
}

}  // namespace pp
