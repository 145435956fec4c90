// Bytes of plans without a model: peaks beside activations, and limits that are kept.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <string>

#include "compiler/simulate.h"
#include "schema/proof/verify.h"
#include "schema/sections.h"
#include "schema/semantics/alive.h"
#include "tests/must_compile.h"
#include "tests/scheme_problem.h"

namespace pp {
namespace {

constexpr int64_t kMiB = 1 << 20;

std::vector<DevicePrediction> PeaksOf(const Program& plan) {
  return pp::PeaksOf(Unrolled(plan), *CostsOf(plan));
}

int64_t MostOf(const Program& plan) {
  int64_t most = 0;
  for (const DevicePrediction& device : PeaksOf(plan)) most = std::max(most, device.peak_bytes);
  return most;
}

}  // namespace

TEST_CASE("where only stashes have bytes, a peak is that of the activations") {
  for (const Scheme& scheme : Schemes())
    for (const char* passes : {"", "mario", "apply-checkpoint", "split-backward"})
      for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
        INFO(scheme.name << " " << passes);
        const auto plan = Compile({.scheme = std::string(scheme.name),
                                   .shape = {4, 8, 0},
                                   .passes = passes,
                                   .p2p = p2p,
                                   .costs = "stash=1MiB,input=0,act=0,weights=0,transient=0"});
        if (!plan.ok()) {
          CHECK(*passes != 0);  // a pass that does not apply
          continue;
        }
        for (const DevicePrediction& device : PeaksOf(*plan)) {
          CHECK(device.peak_activations > 0);
          CHECK(static_cast<double>(device.peak_bytes) * device.share ==
                device.peak_activations * kMiB);
        }
      }
}

TEST_CASE("a limit in bytes is kept, or the smallest one that would do is named") {
  const std::string costs =
      "f=1,b=2,bi=1,bw=1,r=1,stash={},input=1.5MiB,work=11MiB,act=1MiB,grad=2MiB,weights=30MiB,"
      "transient=3MiB";
  int kept = 0, refused = 0;
  for (const char* scheme :
       {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "chimera", "hanayo", "dualpipe-v"})
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      CompileOptions options{.scheme = scheme, .shape = {2, 4, 0}, .p2p = p2p};
      options.fit.quick = true;
      const int stages = BuildPlacement(scheme, options.shape)->stages;
      std::string stash = "20MiB";
      for (int s = 1; s < stages; ++s) stash += s + 1 < stages ? ":18MiB" : ":25MiB";
      options.costs = fmt::format(fmt::runtime(costs), stash);
      const int64_t plain = MostOf(MustCompile(options));
      for (const double part : {1.0, 0.85, 0.7, 0.55, 0.4}) {
        const auto limit = static_cast<double>(static_cast<int64_t>(part * plain));
        options.fit.limit = {MemoryLimit::kBytes, {limit}};
        INFO(scheme << " " << static_cast<int>(p2p) << " " << limit);
        const auto plan = Compile(options);
        if (plan.ok()) {
          CHECK(static_cast<double>(MostOf(*plan)) <= limit);
          kept += part < 1;
          continue;
        }
        CHECK(part < 1);
        const std::string error = plan.status().message();
        const size_t named = error.find('(');
        CHECK_THAT(error, Catch::Contains("is too little for device"));
        CHECK_THAT(error, Catch::EndsWith("MiB is the least that was found)"));
        const double least = std::stod(error.substr(named + 1)) * kMiB;
        CHECK(least > limit);
        options.fit.limit.values = {least};
        CHECK(static_cast<double>(MostOf(MustCompile(options))) <= least);
        ++refused;
      }
    }
  CHECK(kept > 30);
  CHECK(refused > 5);
}

TEST_CASE("a limit in bytes for each device") {
  CompileOptions options{
      .scheme = "1f1b", .shape = {2, 8}, .costs = "stash=20MiB,act=1MiB,transient=2MiB"};
  options.fit.limit = {MemoryLimit::kBytes, {32.0 * kMiB, 25.0 * kMiB}};
  const auto peaks = PeaksOf(MustCompile(options));
  CHECK(peaks[0].peak_bytes <= 32 * kMiB);
  CHECK(peaks[1].peak_bytes <= 25 * kMiB);
}

TEST_CASE("less left for the weight halves leaves room for more stashes") {
  // A stash, and what is left of two others; or of none.
  CompileOptions options{.scheme = "zb-h1", .shape = {2, 8}};
  options.fit.limit = {MemoryLimit::kBytes, {30.0 * kMiB}};
  const auto makespan = [&](const std::string& costs) {
    options.costs = "f=1,b=2,bi=1,bw=1,stash=20MiB,input=20MiB" + costs;
    const Program plan = MustCompile(options);
    std::vector<WaitsFor> waits_for;
    REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
    return Simulate(plan, waits_for, *CostsOf(plan))->makespan;
  };
  CHECK(makespan(",work=5MiB") < makespan(",work=20MiB"));
}

TEST_CASE("the search's messages have the bytes of both ways") {
  const search::Problem problem =
      search::MakeSchemeProblem("1f1b", {2, 1}, "latency=1,bandwidth=2,act=4,grad=10", 1).problem;
  CHECK(problem.lag[search::MakeTask(problem.Cell(1, 0), Part::kForward)] == 3);
  CHECK(problem.lag[search::MakeTask(problem.Cell(0, 0), Part::kBackward)] == 6);
}

TEST_CASE("bytes and limits that do not go together are errors") {
  const auto error = [](CompileOptions options) {
    const auto plan = Compile(options);
    return plan.ok() ? "none" : plan.status().message();
  };
  CompileOptions options{.scheme = "1f1b", .shape = {2, 2}};
  options.fit.limit = {MemoryLimit::kBytes, {1e9}};
  CHECK(error(options) ==
        "--memory-limit: bytes need --model (or what stages hold: --costs stash=40MiB,...)");
  options.costs = "stash=1:2:3";
  CHECK(error(options) == "--costs: 'stash=1:2:3' has 3 numbers (1, or 2: one for each stage)");
  options.costs = "weights=2000MiB";
  CHECK(error(options) ==
        "--memory-limit: 953.67MiB is too little for device 0 (2000.00MiB is the least that was "
        "found)");
}

}  // namespace pp
