// pipec tune against all plans of small spaces, compiled and simulated one by one.
#include "compiler/tune/tune.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "compiler/simulate.h"
#include "compiler/tune/bounds.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

struct Exact {
  double seconds = HUGE_VAL, bytes = 0;
  bool legal = false;
};
Exact ExactOf(const CompileOptions& compile) {
  Exact exact;
  const auto program = Compile(compile);
  std::vector<WaitsFor> waits_for;
  if (!program.ok() || program->MakesVersions() || !program->lists[0].prologue.empty())
    return exact;
  REQUIRE(Verify(*program, Depth::kPlan, &waits_for).ok());
  const auto prediction = Simulate(*program, waits_for, *CostsOf(*program, program->costs));
  REQUIRE(prediction.ok());
  exact.legal = true;
  exact.seconds = prediction->makespan;
  for (const DeviceList& list : program->lists)
    exact.bytes = std::max(exact.bytes, static_cast<double>(list.arena_bytes));
  return exact;
}

PriceSource PricesOf(const TuneOptions& options) {
  if (!options.profiles.empty()) return {.profiles = options.profiles};
  return {.machine = options.machine};
}

// The fastest of all that fit; recomputation where a plan does not fit without.
double FastestOfAll(const TuneOptions& options) {
  double fastest = HUGE_VAL;
  const auto fits = [&](const Exact& exact) {
    if (exact.legal && exact.bytes <= options.memory) fastest = std::min(fastest, exact.seconds);
    return exact.bytes <= options.memory;
  };
  for (const Scheme& scheme : Schemes())
    for (int pp = 1; pp <= options.devices; ++pp)
      for (int tp = 1; pp * tp <= options.devices; ++tp)
        for (int size = 1; size <= options.batch; ++size)
          for (int v = 0; v <= 4; ++v) {
            const int dp = options.devices / pp / tp;
            if (pp * tp * dp != options.devices || options.batch % (dp * size) != 0) continue;
            if (v > 0 && scheme.parts == Scheme::kFixed) continue;
            if (options.pp > 0 && pp != options.pp) continue;
            CompileOptions compile{.scheme = std::string(scheme.name),
                                   .shape = {.devices = pp,
                                             .microbatches = options.batch / dp / size,
                                             .stages_per_device = v},
                                   .replicas = dp,
                                   .prices = PricesOf(options),
                                   .job = options.job,
                                   .balance_layers = true};
            compile.job.tp = tp;
            compile.job.micro_batch_size = size;
            // Where there are copies.
            compile.zero = dp > 1 || scheme.map == StageMap::kBoth;
            if (fits(ExactOf(compile))) continue;
            for (const char* passes : {"mario", "apply-checkpoint"}) {
              compile.passes = passes;
              fits(ExactOf(compile));
            }
          }
  return fastest;
}

TuneOptions Space(const std::string& family, int devices, int batch, double memory) {
  TuneOptions options{
      .machine = Machines()[0], .devices = devices, .memory = memory, .batch = batch};
  options.machine.node = 2;
  // Slow enough for a small model's operations to matter beside launches and latencies.
  for (double& flops : options.machine.flops) flops /= 1e5;
  options.job.model = SmallModel(family, false, 4, 128);
  options.job.sequence_length = 128;
  return options;
}

Profile ProfileWithCheapWholes(const Job& job) {
  Profile profile{.job = job};
  profile.job.layers_per_stage = {2, 2};
  for (auto& row : profile.seconds) row = {-1, -1};
  profile.of(Measured::kF) = profile.of(Measured::kB) = {1, 1};
  profile.of(Measured::kBi) = profile.of(Measured::kBw) = {1, 1};
  profile.of(Measured::kStep) = {0.1, 0.1};
  profile.of(Measured::kComm) = {0.01, -1};
  return profile;
}

TEST_CASE("the best plan is that of trying all, and no bound is above a plan") {
  enum class By { kMachine, kFlops, kProfile, kSlowLinks, kContention };
  struct Row {
    std::string family;
    int pp;
    double memory;
    By by = By::kMachine;
  };
  const Row rows[] = {{"gpt2", 0, 1e9},
                      {"gpt2", 0, 9.4e5},
                      {"gpt2", 2, 1e9},
                      {"llama", 0, 1.04e6},
                      {"llama", 0, 9.4e5},
                      {"llama", 4, 1e9},
                      {"gpt2", 0, 1e9, By::kFlops},
                      {"gpt2", 0, 1e9, By::kProfile},
                      {"gpt2", 1, 1e9, By::kSlowLinks},
                      {"gpt2", 0, 1e9, By::kContention}};
  for (const auto& [family, pp, memory, by] : rows) {
    TuneOptions options = Space(family, 4, 8, memory);
    options.pp = pp;
    // Many plans take equally long.
    if (by == By::kFlops) options.machine = *MachineOf("1e12");
    // Reductions that one by one go on beside backwards make several stages on one device pay.
    options.machine.contention = by == By::kContention;
    if (by == By::kSlowLinks || by == By::kContention)
      for (Link* link : {&options.machine.inside, &options.machine.between}) *link = {1e8, 0};
    // Whole backwards are cheaper than their halves, which dualpipe has beside them.
    if (by == By::kProfile) options.profiles = {ProfileWithCheapWholes(options.job)};
    INFO(family << " pp " << pp << " memory " << memory);
    const auto tuned = Tune(options);
    INFO(tuned.status().message());
    const double fastest = FastestOfAll(options);
    REQUIRE(tuned.ok() == (fastest < HUGE_VAL));
    if (!tuned.ok()) continue;
    CHECK(tuned->best[0].seconds == Approx(fastest).epsilon(1e-9));
    if (by == By::kSlowLinks) CHECK(tuned->plan->stages > 1);
    const Exact best = ExactOf(tuned->best[0].compile);
    CHECK(best.seconds == tuned->best[0].seconds);
    CHECK(best.bytes == tuned->best[0].bytes);
    CHECK(best.bytes <= memory);
    double planned = 0;
    for (const DeviceList& list : tuned->plan->lists)
      planned = std::max(planned, static_cast<double>(list.arena_bytes));
    CHECK(planned == best.bytes);
    CHECK(Print(*tuned->plan) == Print(*Compile(tuned->best[0].compile)));
    for (size_t i = 1; i < tuned->best.size(); ++i)
      CHECK(tuned->best[i - 1].seconds <= tuned->best[i].seconds * (1 + 1e-9));
    for (const Candidate& candidate : tuned->rest) {
      const Exact exact = ExactOf(candidate.compile);
      INFO(candidate.compile.scheme
           << " " << candidate.compile.shape.devices << " " << candidate.compile.passes << " "
           << (exact.legal ? "" : Compile(candidate.compile).status().message()));
      CHECK((exact.legal || candidate.compile.passes.empty()));  // its command runs
      CHECK(candidate.seconds <= exact.seconds * (1 + 1e-9));
      CHECK(candidate.bytes <= std::max(exact.bytes, exact.legal ? 0 : HUGE_VAL));
    }
    for (const Candidate& candidate : tuned->large) {
      CHECK(candidate.bytes > memory);
      const Exact exact = ExactOf(candidate.compile);
      if (exact.legal) CHECK(exact.bytes >= candidate.bytes);
    }
  }
}

// Where memory is scarce, Mario's passes recompute nearly all. The bounds on work know that before
// forwards move, which takes long and makes none of these fast enough.
TEST_CASE("what recomputes too much is not scheduled") {
  const auto tuned = Tune(Space("llama", 8, 64, 1e6));
  REQUIRE(tuned.ok());
  int all = 0;
  for (const Candidate& candidate : tuned->rest) {
    if (candidate.compile.passes != "mario") continue;
    ++all;
    CHECK(candidate.level == Level::kWork);
  }
  CHECK(all > 100);
}

// The last stage's 8 of 15: from its last backward at 7, while grad s0 m1 makes its way back
// until 9.
TEST_CASE("what a device loses to reductions may fall into the way back") {
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {2, 2}, .replicas = 2});
  const CostModel costs = *ParseCosts("f=1,b=2,bi=1,bw=1,r=1,reduce=0:8,contention=1", 2);
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
  CHECK(Simulate(plan, waits_for, costs)->makespan == 15);
  CHECK(WorkBound(plan, costs, 2, false) == 15);
}

TEST_CASE("costs may drift so far, and not further") {
  const TuneOptions options = Space("gpt2", 4, 8, 9.4e5);
  const auto tuned = Tune(options);
  REQUIRE(tuned.ok());
  const Program& plan = *tuned->plan;
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
  const CostModel costs = *CostsOf(plan, plan.costs);
  const auto seconds = [&](double messages, double reductions) {
    CostModel scaled = costs;
    for (PerStage* row : {&scaled.comm, &scaled.latency, &scaled.post})
      for (double& time : *row) time *= messages;
    for (double& time : scaled.reduce) time *= reductions;
    return Simulate(plan, waits_for, scaled)->makespan;
  };
  const double best = seconds(1, 1);
  for (const double limit : {best * 1.01, best * 1.3, best * 100}) {
    INFO(limit / best);
    const auto drift = DriftUntil(plan, waits_for, limit);
    REQUIRE(drift.ok());
    CHECK(seconds(drift->messages, 1) <= limit * (1 + 1e-9));
    CHECK(seconds(1, drift->reductions) <= limit * (1 + 1e-9));
    CHECK((drift->messages == kMostDrift || seconds(drift->messages * 1.5, 1) > limit));
    CHECK((drift->reductions == kMostDrift || seconds(1, drift->reductions * 1.5) > limit));
  }
  CHECK(DriftUntil(plan, waits_for, best)->messages == 1);
}

TEST_CASE("what is given is kept") {
  TuneOptions options = Space("gpt2", 4, 8, 1e9);
  options.scheme = "interleaved";
  options.pp = 2;
  options.tp = 2;
  options.micro_batch_size = 2;
  const auto tuned = Tune(options);
  REQUIRE(tuned.ok());
  REQUIRE(!tuned->best.empty());
  for (const auto* list : {&tuned->best, &tuned->rest, &tuned->large})
    for (const Candidate& candidate : *list) {
      CHECK(candidate.compile.scheme == "interleaved");
      CHECK(candidate.compile.shape.devices == 2);
      CHECK(candidate.compile.job.tp == 2);
      CHECK(candidate.compile.job.micro_batch_size == 2);
      CHECK(candidate.compile.replicas == 1);
    }
  CHECK(tuned->plan->scheme == "interleaved");
}

TEST_CASE("a batch that does not divide and a memory that holds nothing are errors") {
  const auto message = [](const TuneOptions& options) { return Tune(options).status().message(); };
  CHECK(message(Space("gpt2", 4, 8, 100)).find("--device-memory: ") == 0);
  TuneOptions odd = Space("gpt2", 4, 8, 1e9);
  odd.pp = 3;
  CHECK(message(odd) == "--pp: 3 with --devices 4, tp 1 or 2 and 4 layers (1, 2, 4)");
  odd.pp = 4;
  odd.tp = 2;
  CHECK(message(odd) == "--pp: 4 with --devices 4, tp 2 and 4 layers (1, 2)");
}

// Whatever does not divide: the error is the first option's, and what it names is legal.
TEST_CASE("what does not divide is named, with what would") {
  for (const int devices : {2, 3, 6})
    for (const int pp : {0, 2, 3})
      for (const int tp : {0, 2})
        for (const int batch : {1, 6, 7})
          for (const int size : {0, 4}) {
            TuneOptions options = Space("gpt2", devices, batch, 1e9);
            options.pp = pp;
            options.tp = tp;
            options.micro_batch_size = size;
            options.scheme = "gpipe";
            options.shown = 1;
            std::string text = Tune(options).status().message();
            // Each error is mended by the last value that it names, until none is left.
            int errors = 0;
            for (; !text.empty() && errors < 4; ++errors) {
              INFO(devices << " pp " << pp << " tp " << tp << " batch " << batch << " size " << size
                           << ": " << text);
              const std::string option = text.substr(0, text.find(':'));
              const std::string right = text.substr(text.find_last_of(" (") + 1);
              const int value = std::stoi(right);
              if (option == "--pp")
                options.pp = value;
              else if (option == "--tp")
                options.tp = value;
              else if (option == "--global-batch-size")
                options.batch = value;
              else if (option == "--micro-batch-size")
                options.micro_batch_size = value;
              else
                FAIL("an error of another option");
              text = Tune(options).status().message();
            }
            CHECK(text == "");
          }
}

}  // namespace
}  // namespace pp
