// From step to step without a common end: what the zero-bubble papers count.
#include "compiler/period.h"

#include <catch2/catch.hpp>
#include <cstdio>
#include <random>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/proof/verify.h"
#include "schema/sections.h"

namespace pp {
namespace {

Prediction MustSimulate(const CompileOptions& options, const std::string& costs) {
  const auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(*program, Depth::kPlan, &waits_for).ok());
  const auto model = ParseCosts(costs, program->stages);
  REQUIRE(model.ok());
  const auto prediction = Simulate(*program, waits_for, *model);
  INFO(prediction.status().message());
  REQUIRE(prediction.ok());
  return *prediction;
}

}  // namespace

TEST_CASE("zero-bubble schedules without a norm, D = 4, M = 12, F = I = W = 1") {
  struct Row {
    const char *scheme, *passes;
    double makespan, period;
  };
  // 36 = M (F + I + W): no bubble. ZB-H1 and split 1F1B have too little memory for that.
  for (const Row& row : {Row{"zb-h1", "", 39, 39}, Row{"zb-h2", "", 39, 36},
                         Row{"zb-v", "", 37.5, 36}, Row{"1f1b", "split-backward", 39, 39}}) {
    INFO(row.scheme);
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      CompileOptions options{
          .scheme = row.scheme, .shape = {4, 12}, .passes = row.passes, .p2p = p2p, .clip = false};
      if (options.scheme == "zb-v") options.shape.stages_per_device = 2;
      const Prediction off = MustSimulate(options, "f=1,b=2");
      options.clip = true;
      const Prediction exact = MustSimulate(options, "f=1,b=2");
      CHECK(exact.period == exact.makespan);
      CHECK(off.makespan == exact.makespan);
      std::printf("%-6s %-15s %-9s makespan %g period %g\n", row.scheme, row.passes,
                  p2p == P2p::kAsync ? "async" : "blocking", off.makespan, off.period);
      if (p2p == P2p::kBlocking) continue;
      CHECK(off.makespan == Approx(row.makespan));
      CHECK(off.period == Approx(row.period));
    }
  }
}

TEST_CASE("the period is never below the work of the busiest device, nor above the makespan") {
  for (const char* scheme : {"gpipe", "1f1b", "zb-h1", "zb-h2", "chimera"})
    for (const char* costs : {"f=1,b=2", "f=1.37,b=2.11,comm=0.1,latency=0.3", "f=1:2:1:1,b=2",
                              "f=1,b=2,step=0.5,reduce=1"}) {
      INFO(scheme << " " << costs);
      CompileOptions options{.scheme = scheme, .shape = {4, 8}, .clip = false};
      for (int replicas : {1, 2}) {
        options.replicas = replicas;
        const Prediction prediction = MustSimulate(options, costs);
        double busy = 0;
        for (const DevicePrediction& device : prediction.devices)
          busy = std::max(busy, device.busy);
        CHECK(prediction.period >= busy * (1 - 1e-9));
        CHECK(prediction.period <= prediction.makespan * (1 + 1e-9));
      }
    }
}

// The mean over many bodies, far from the first.
double LongRun(const Program& program, const CostModel& costs) {
  constexpr int kBodies = 61, kFrom = 30;
  const Program unrolled = Unroll(program, kBodies);
  const ValueBytes bytes(program);
  const Placement placement(program);
  std::vector<WaitsFor> waits_for(program.devices);
  for (int d = 0; d < program.devices; ++d) {
    MemoryCheck memory(unrolled, d, unrolled.lists[d].body);
    REQUIRE(WalkList(unrolled, d, unrolled.lists[d].body,
                     {.depth = Depth::kPlan,
                      .placement = &placement,
                      .memory = &memory,
                      .bytes = &bytes,
                      .waits_for = &waits_for[d],
                      .bodies = kBodies})
                .ok());
  }
  Execution execution;
  REQUIRE(Execute(unrolled, waits_for, costs, &execution).ok());
  double most = 0;
  for (int d = 0; d < program.devices; ++d) {
    const size_t length = program.lists[d].body.size();
    const std::vector<Span>& spans = execution.spans[d];
    most = std::max(
        most,
        (spans[kBodies * length - 1].end - spans[(kBodies - kFrom) * length - 1].end) / kFrom);
  }
  return most;
}

TEST_CASE("the steady state is that of a long run") {
  std::mt19937 random(1);
  for (int k = 0; k < 60; ++k) {
    const char* schemes[] = {"gpipe", "1f1b", "zb-h1", "chimera", "dualpipe"};
    CompileOptions options{
        .scheme = schemes[k % 5], .shape = {8, 16}, .replicas = k % 2 + 1, .clip = false};
    auto list = [&] {
      std::string text;
      for (int s = 0; s < 8; ++s) text += (s > 0 ? ":" : "") + std::to_string(1 + random() % 30);
      return text;
    };
    const std::string costs = "f=" + list() + ",b=" + list() + ",bi=" + list() + ",bw=" + list() +
                              ",comm=" + list() + ",latency=" + list() + ",step=" + list() +
                              ",reduce=" + list();
    INFO(options.scheme << " " << costs);
    const auto program = Compile(options);
    REQUIRE(program.ok());
    const auto model = ParseCosts(costs, program->stages);
    REQUIRE(model.ok());
    const auto period = SteadyPeriod(*program, *model, *OnTransport::Make({}, *program));
    REQUIRE(period.ok());
    CHECK(*period == Approx(LongRun(*program, *model)).epsilon(1e-9));
  }
}

TEST_CASE("one device goes on at once") {
  const Prediction prediction =
      MustSimulate({.scheme = "1f1b", .shape = {1, 4}, .clip = false}, "f=1,b=2,step=3");
  CHECK(prediction.makespan == 15);
  CHECK(prediction.period == 15);
}

TEST_CASE("where steps overlap, makespan is already the period") {
  const Prediction prediction = MustSimulate({.scheme = "pipedream", .shape = {4, 8}}, "f=1,b=2");
  CHECK(prediction.makespan == 24);
  CHECK(prediction.period == 24);
}

}  // namespace pp
