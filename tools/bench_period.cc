// The period: the time from step to step that the simulator predicts if no device waits for the
// others at the end of a step (--grad-norm off), next to the runtime's, whose ranks sleep for the
// cost of their instructions (sleeping_executor.h). Below it the same plans with the gradient norm
// (--grad-norm exact), where all devices end a step together.
//
//   bench_period [--unit MILLISECONDS] [--steps N] [--timeline SCHEME]
//
// Four devices, twelve micro-batches, F = I = W = 1 unit: a step without bubble takes 36 units. The
// head is a separate tensor: a tied one makes the first and the last device wait for each other in
// every step, as one row shows. All plans run in turn, in rounds. --timeline prints two steps of a
// scheme, instruction by instruction.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "runtime/run/train.h"
#include "schema/model/families.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tools/sleeping_executor.h"

namespace pp {
namespace {

constexpr int kDevices = 4, kMicros = 12, kRounds = 3, kSkipped = 4;
constexpr double kTarget = 0.03;

struct Options {
  double unit = 10e-3;  // seconds
  int steps = 12;
  std::string timeline;  // a scheme; empty: none
};

void Stop(const Status& status) {
  if (status.ok()) return;
  fmt::print(stderr, "bench_period: error: {}\n", status.message());
  std::exit(static_cast<int>(status.code()));
}

ModelConfig TinyModel(bool tied) {
  ModelConfig model{.family = FindFamily("gpt2")};
  model.vocab_size = 256;
  model.max_positions = 8;
  model.hidden_size = 16;
  model.layers = 8;
  model.heads = 2;
  model.intermediate_size = 64;
  model.tied = tied;
  return model;
}

struct Plan {
  std::string scheme, passes;
  bool tied = false;
  bool clip = false;
};

struct Case {
  Plan plan;
  Program program;
  Prediction prediction;
  std::vector<double> medians, best, means;  // by round, in units

  std::string name() const {
    return plan.scheme + (plan.passes.empty() ? "" : " " + plan.passes) +
           (plan.tied ? ", tied" : "");
  }
  double predicted() const { return plan.clip ? prediction.makespan : prediction.period; }
};

Case MustCompile(const Plan& plan) {
  Case result{.plan = plan};
  auto program = Compile({.scheme = plan.scheme,
                          .shape = {kDevices, kMicros, 0},
                          .passes = plan.passes,
                          .clip = plan.clip,
                          .job = {.model = TinyModel(plan.tied)}});
  Stop(program.status());
  result.program = std::move(*program);
  std::vector<WaitsFor> waits_for;
  Stop(Verify(result.program, Depth::kPlan, &waits_for));
  auto prediction = Simulate(result.program, waits_for, CostModel());
  Stop(prediction.status());
  result.prediction = std::move(*prediction);
  return result;
}

TrainReport MustRun(const Program& program, const Options& options, const std::string& data) {
  TrainOptions run;
  run.data = {data};
  run.optimizer.steps = options.steps;
  run.optimizer.grad_clip = program.clip ? 1 : 0;
  run.record = true;
  run.make_executor = [&](int) { return MakeSleepingExecutor(program, CostModel(), options.unit); };
  TrainReport report = Train(program, run);
  Stop(report.status);
  return report;
}

void Measure(Case* c, const Options& options, const std::string& data) {
  const TrainReport report = MustRun(c->program, options, data);
  const std::vector<double> times = StepTimes(c->program, report, kSkipped);
  double mean = 0;
  const auto ends = StepEnds(c->program, report);
  for (const std::vector<double>& of_rank : ends)
    mean += (of_rank.back() - of_rank[kSkipped - 1]) /
            static_cast<double>(of_rank.size() - kSkipped) / static_cast<double>(ends.size());
  c->medians.push_back(times[times.size() / 2] / options.unit);
  c->best.push_back(times.front() / options.unit);
  c->means.push_back(mean / options.unit);
}

// Two steps on each rank, in units.
void PrintTimeline(const Case& c, const Options& options, const std::string& data) {
  const TrainReport report = MustRun(c.program, options, data);
  for (int rank = 0; rank < kDevices; ++rank) {
    std::vector<Event> events;
    for (const Event& event : report.events)
      if (event.rank == rank && event.step >= options.steps - 2 &&
          Info(c.program.lists[event.device].body[event.index].op).lane == Lane::kCompute)
        events.push_back(event);
    std::sort(events.begin(), events.end(),
              [](const Event& a, const Event& b) { return a.start < b.start; });
    for (const Event& event : events)
      fmt::print("rank {} step {:2} {:9.3f} {:7.3f}  {}\n", rank, event.step,
                 event.start / options.unit, event.duration / options.unit,
                 ToText(c.program.lists[event.device].body[event.index]));
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Main(const Options& options) {
  const std::string data = std::filesystem::temp_directory_path() /
                           fmt::format("bench_period.{}", static_cast<int>(getpid()));
  std::ofstream(data) << std::string(10000, 'x');
  std::vector<Case> cases;
  for (bool clip : {false, true}) {
    for (const char* scheme : {"zb-h1", "zb-h2", "zb-v"})
      cases.push_back(MustCompile({.scheme = scheme, .clip = clip}));
    cases.push_back(MustCompile({.scheme = "1f1b", .passes = "split-backward", .clip = clip}));
    cases.push_back(MustCompile({.scheme = "zb-h2", .tied = true, .clip = clip}));
  }
  if (!options.timeline.empty()) {
    for (const Case& c : cases)
      if (c.plan.scheme == options.timeline && !c.plan.clip && !c.plan.tied)
        PrintTimeline(c, options, data);
    std::filesystem::remove(data);
    return 0;
  }
  for (int round = 0; round < kRounds; ++round)
    for (Case& c : cases) Measure(&c, options, data);
  std::filesystem::remove(data);

  fmt::print(
      "D {}, M {}, F = I = W = 1 unit of {:g} ms; {} rounds of {} steps, the first {} left out\n",
      kDevices, kMicros, options.unit * 1e3, kRounds, options.steps, kSkipped);
  fmt::print("{:<20} {:>9} {:>9} | {:>9} {:>9} {:>9} | {:>9} {:>7}\n", "from step to step",
             "makespan", "period", "best", "median", "mean", "measured", "target");
  for (const Case& c : cases) {
    if (&c == &cases[cases.size() / 2]) fmt::print("with the gradient norm\n");
    const double measured = Median(c.medians);
    const double off = measured / c.predicted() - 1;
    fmt::print("{:<20} {:9.4g} {:9.4g} | {:9.2f} {:9.2f} {:9.2f} | {:>+7.2f} % {:>7}\n", c.name(),
               c.prediction.makespan, c.prediction.period,
               *std::min_element(c.best.begin(), c.best.end()), measured, Median(c.means),
               off * 100, std::abs(off) <= kTarget ? "met" : "MISSED");
  }
  return 0;
}

Options ReadOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    if (key == "--unit") options.unit = std::atof(argv[i + 1]) * 1e-3;
    if (key == "--steps") options.steps = std::atoi(argv[i + 1]);
    if (key == "--timeline") options.timeline = argv[i + 1];
  }
  return options;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) { return pp::Main(pp::ReadOptions(argc, argv)); }
