// What a run took beside what is predicted: traces are read as they are written, a run that takes
// what is predicted differs in nothing, and what differs is named.
#include "compiler/measured.h"

#include <catch2/catch.hpp>
#include <functional>
#include <tuple>

#include "compiler/compile.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "schema/topology.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

using Catch::Matchers::StartsWith;

const CostModel kCosts = *ParseCosts("f=2s,b=4s,comm=0.5s,step=1s", 2);

Program PlanOf(const std::string& scheme, int tp = 1, int replicas = 1) {
  CompileOptions options{.scheme = scheme,
                         .shape = {.devices = 2, .microbatches = 4, .stages_per_device = 0},
                         .replicas = replicas};
  const bool overlaps = scheme == "pipedream-2bw";
  options.job.model = SmallModel("gpt2", !overlaps, 4);
  options.job.tp = tp;
  options.clip = !overlaps;
  return MustCompile(options);
}

Prediction PredictionOf(const Program& program) {
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(program, Depth::kPlan, &waits_for).ok());
  return *Simulate(program, waits_for, kCosts);
}

// Steps that take what is predicted; `times` tells how many times as long an instruction takes in a
// step. Step k begins at 1000 k.
using Times = std::function<double(int step, const Instruction&)>;
std::vector<Event> EventsOf(const Program& program, const Prediction& prediction, int steps,
                            const Times& times) {
  std::vector<Event> events;
  const Topology topology = TopologyOf(program);
  for (int step = 1; step <= steps; ++step)
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const int d = topology.PlaceOf(rank).device;
      for (size_t i = 0; i < program.lists[d].body.size(); ++i) {
        const Span& span = prediction.execution.spans[d][i];
        const double factor = times(step, program.lists[d].body[i]);
        events.push_back({.rank = rank,
                          .device = d,
                          .index = static_cast<int32_t>(i),
                          .step = step,
                          .start = 1000.0 * step + span.start,
                          .duration = (span.end - span.start) * factor});
      }
    }
  return events;
}
constexpr auto kAsPredicted = [](int, const Instruction&) { return 1.0; };

TEST_CASE("a run that takes what is predicted differs in nothing") {
  constexpr auto kOther = RankOrder::kTpDpPp;
  for (const auto& [scheme, tp, replicas, order] :
       {std::tuple("1f1b", 1, 1, RankOrder()), std::tuple("zb-v", 1, 1, RankOrder()),
        std::tuple("gpipe", 2, 1, RankOrder()), std::tuple("1f1b", 1, 2, RankOrder()),
        std::tuple("1f1b", 1, 2, kOther), std::tuple("zb-v", 2, 3, kOther)}) {
    INFO(scheme << " tp " << tp << " replicas " << replicas);
    Program program = PlanOf(scheme, tp, replicas);
    program.rank_order = order;
    const Prediction prediction = PredictionOf(program);
    const auto read = ParseChromeTrace(
        program, ChromeTrace(program, EventsOf(program, prediction, 5, kAsPredicted)));
    INFO(read.status().message());
    REQUIRE(read.ok());
    const auto run = Measure(program, kCosts, *read);
    REQUIRE(run.ok());
    CHECK(run->steps == 3);
    CHECK(run->step > 2);
    CHECK(run->fastest == Approx(prediction.makespan));
    CHECK(run->shown.makespan == Approx(prediction.makespan));
    CHECK(run->shown.bubble == Approx(prediction.bubble));
    CHECK(SecondsPerUnit(*run) == Approx(1));
    for (const MeasuredKind& kind : run->kinds) {
      INFO(Info(kind.op).text);
      CHECK(kind.measured == Approx(kind.predicted).margin(1e-9));
      CHECK(kind.median == Approx(kind.predicted).margin(1e-9));
    }
    for (int d = 0; d < program.devices; ++d) {
      const DeviceTimes& times = run->devices[d];
      CHECK(times.busy == Approx(prediction.devices[d].busy));
      CHECK(run->shown.devices[d].peak_activations == prediction.devices[d].peak_activations);
      CHECK(run->shown.devices[d].peak_bytes == prediction.devices[d].peak_bytes);
      CHECK(times.busy + times.warm_up + times.gaps + times.drain == Approx(prediction.makespan));
    }
    CHECK_THAT(ToText(*run, program, prediction), StartsWith("predicted"));
  }
}

TEST_CASE("the kind of instruction that is predicted worst stands first") {
  const Program program = PlanOf("1f1b");
  const Prediction prediction = PredictionOf(program);
  // In one step of five it is slow beyond measure: a median does not see it, its step is not shown.
  const auto times = [](int step, const Instruction& i) {
    if (i.op == Op::kStep) return 0.5;
    return i.op != Op::kForward ? 1.0 : step == 4 ? 50.0 : 3.0;
  };
  const auto run = Measure(program, kCosts, EventsOf(program, prediction, 7, times));
  REQUIRE(run.ok());
  CHECK(run->step != 4);
  CHECK(run->slowest > run->fastest + 50);
  CHECK(run->kinds[0].op == Op::kForward);
  CHECK(run->kinds[0].predicted == Approx(2));
  CHECK(run->kinds[0].measured == Approx(6));
  CHECK(run->kinds[0].median == Approx(6));
  CHECK(run->kinds[0].count == 8);
  CHECK(run->kinds[1].op == Op::kStep);
  // 8 forwards of 6, 8 backwards of 4 and 2 steps of a half, where 2, 4 and 1 were predicted.
  CHECK(SecondsPerUnit(*run) == Approx((48. + 32 + 1) / (16 + 32 + 2)));
  const CostModel scaled = InSeconds(CostModel{.bandwidth = {8}}, 2);
  CHECK(scaled.seconds);
  CHECK(scaled.f == PerStage{2});
  CHECK(scaled.b == PerStage{4});
  CHECK(scaled.bandwidth == PerStage{4});
}

TEST_CASE("steps that overlap are measured from end to end") {
  const Program program = PlanOf("pipedream-2bw");
  std::vector<Event> events;
  for (int step = 1; step <= 6; ++step)
    for (int d = 0; d < 2; ++d)
      for (size_t i = 0; i < program.lists[d].body.size(); ++i)
        events.push_back({.rank = d,
                          .device = d,
                          .index = static_cast<int32_t>(i),
                          .step = step,
                          .start = 20.0 * step + static_cast<double>(i) + (d == 0 ? 0 : 30),
                          .duration = 1});
  const auto run = Measure(program, kCosts, events);
  REQUIRE(run.ok());
  CHECK(run->steps == 3);  // the third follows none that counts
  CHECK(run->shown.makespan == Approx(20));
  CHECK(run->shown.execution.makespan > 30);
  const Prediction prediction = PredictionOf(program);
  for (int d = 0; d < 2; ++d)
    CHECK(run->shown.devices[d].peak_activations == prediction.devices[d].peak_activations);
}

TEST_CASE("a trace that is not this plan's is refused") {
  const Program program = PlanOf("1f1b");
  const Prediction prediction = PredictionOf(program);
  std::vector<Event> events = EventsOf(program, prediction, 1, kAsPredicted);
  const std::string text = ChromeTrace(program, events);
  const auto refused = [&](const std::string& from, const std::string& to,
                           const std::string& error) {
    std::string wrong = text;
    REQUIRE(wrong.find(from) != wrong.npos);
    wrong.replace(wrong.find(from), from.size(), to);
    INFO(from << " as " << to);
    const auto read = ParseChromeTrace(program, wrong);
    INFO(read.status().message());
    CHECK(read.status().message().find(error) != std::string::npos);
  };
  refused("FW s0 m0", "FW s0 m1", "is \"FW s0 m1\", the plan's is 'FW s0 m0'");
  refused("\"name\":\"FW s0 m0\"", "\"name\":7", "is 7, the plan's is");
  refused("\"cat\":\"FW\",\"pid\":0", "\"pid\":2", "pid is missing or no number from 0 to 1");
  refused("\"args\":{\"step\":1,", "\"args\":{\"step\":-1,", "step is missing or no number");
  refused("\"args\":{\"step\":1,", "\"arg\":{\"step\":1,", "args is missing");
  refused("\"index\":0", "\"index\":1000", "index is missing or no number from 0 to");
  refused("\"dur\":", "\"dur\":-1", "dur is missing or no number");
  refused("traceEvents", "events", "is no trace");
  refused("[", "{", "is no trace");
  events.pop_back();
  CHECK(Measure(program, kCosts, events).status().message() ==
        "has no step with all instructions of the plan");
  CHECK(!Measure(program, kCosts, {}).ok());
  refused("\"index\":0", "\"index\":0.5", "index is 0.5 (a whole number)");
  for (Event& event : events) event.start = event.duration = 0;
  events.push_back(
      {.rank = 1, .device = 1, .index = static_cast<int32_t>(program.lists[1].body.size()) - 1});
  CHECK(Measure(program, kCosts, events).status().message() == "has steps that take no time");
}

}  // namespace
}  // namespace pp
