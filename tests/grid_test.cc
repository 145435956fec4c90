// Every scheme over many sizes: it verifies, it survives text and file, and it has the
// makespan and the peaks that the papers state.
#include <catch2/catch.hpp>
#include <cstdio>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/file.h"
#include "schema/text.h"
#include "schema/verify.h"

namespace pp {
namespace {

Program MustCompile(const CompileOptions& options) {
  auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return *program;
}

Prediction MustSimulate(const Program& program, const std::string& costs) {
  std::vector<WaitsFor> waits_for;
  const Status status = Verify(program, Depth::kPlan, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  const auto model = ParseCosts(costs, program.stages);
  REQUIRE(model.ok());
  const auto prediction = Simulate(program, waits_for, *model);
  REQUIRE(prediction.ok());
  return *prediction;
}

// Text forgets the memory, which plan-memory finds again; the file forgets nothing.
void CheckRoundTrips(const Program& program) {
  auto parsed = Parse(Print(program), "text");
  INFO(parsed.status().message());
  REQUIRE(parsed.ok());
  REQUIRE(Lower(*parsed, Depth::kLists, {}).ok());
  CHECK(*parsed == program);
  const auto bytes = Encode(program);
  REQUIRE(bytes.ok());
  const auto decoded = Decode(*bytes, "file");
  REQUIRE(decoded.ok());
  CHECK(*decoded == program);
}

// What reference tables say of a scheme, for forwards of f and backwards of b.
struct Known {
  double idle;  // makespan - busy, the same on every device
  std::vector<double> peaks;
};

Known KnownOf(const CompileOptions& options, double f, double b) {
  const int devices = options.shape.devices, micros = options.shape.microbatches;
  const int parts = options.scheme == "interleaved" ? options.shape.stages_per_device : 1;
  Known known{(devices - 1) * (f + b) / parts, {}};
  for (int d = 0; d < devices; ++d) {
    if (options.scheme == "gpipe") known.peaks.push_back(micros);
    if (options.scheme == "1f1b") known.peaks.push_back(std::min(devices - d, micros));
    if (options.scheme == "interleaved") {
      const int group = options.shape.group_size > 0 ? options.shape.group_size : devices;
      const int chunks = std::min(2 * (devices - d - 1) + (parts - 1) * group + 1, micros * parts);
      known.peaks.push_back(static_cast<double>(chunks) / parts);
    }
  }
  return known;
}

void CheckPlan(const CompileOptions& options) {
  INFO(options.scheme << " D " << options.shape.devices << " M " << options.shape.microbatches
                      << " V " << options.shape.stages_per_device << " N "
                      << options.shape.group_size
                      << (options.p2p == P2p::kAsync ? " async" : " blocking"));
  const Program program = MustCompile(options);
  const Prediction prediction = MustSimulate(program, "f=1,b=2");
  const Known known = KnownOf(options, 1, 2);
  const double busy = 3 * options.shape.microbatches;
  CHECK(prediction.makespan == Approx(busy + known.idle).epsilon(1e-9));
  for (int d = 0; d < options.shape.devices; ++d)
    CHECK(prediction.devices[d].peak_activations == Approx(known.peaks[d]));
  if (options.shape.microbatches <= 8) CheckRoundTrips(program);
}

}  // namespace

TEST_CASE("every scheme has the makespan and the peaks of its paper") {
  int plans = 0;
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
    for (int devices = 1; devices <= 8; ++devices)
      for (int micros = 1; micros <= 32; ++micros) {
        for (const char* scheme : {"gpipe", "1f1b"}) {
          CheckPlan({.scheme = scheme, .shape = {devices, micros, 1}, .p2p = p2p});
          ++plans;
        }
        if (micros % devices != 0) continue;
        for (int parts = 1; parts <= 4; ++parts, ++plans)
          CheckPlan({.scheme = "interleaved", .shape = {devices, micros, parts}, .p2p = p2p});
      }
  std::printf("%d plans verified\n", plans);
}

TEST_CASE("interleaved with groups of another size reaches the same makespan") {
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
    for (auto [micros, group] : {std::pair{10, 5}, {9, 5}, {15, 5}, {8, 8}})
      CheckPlan({.scheme = "interleaved", .shape = {4, micros, 2, group}, .p2p = p2p});
}

TEST_CASE("other costs: the longest chain decides, and nothing is late") {
  // GPipe with f = 2, b = 3: (M + D - 1)(f + b).
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    const Program program =
        MustCompile({.scheme = "gpipe", .shape = {4, 8, 1}, .p2p = p2p, .costs = "f=2,b=3"});
    CHECK(MustSimulate(program, "f=2,b=3").makespan == Approx((8 + 3) * 5.0));
  }
}

TEST_CASE("a message may take as long as the instruction beside it without being noticed twice") {
  // In 1F1B every message is on the critical path once going in and once coming out.
  const Program program = MustCompile({.scheme = "1f1b", .shape = {2, 1, 1}});
  CHECK(MustSimulate(program, "f=1,b=2,comm=0.5").makespan == Approx(6 + 2 * 0.5));
}

TEST_CASE("costs of zero still give plans without deadlock") {
  for (const char* scheme : {"gpipe", "1f1b", "interleaved"})
    for (P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const char* costs : {"f=0,b=0", "f=0,b=1", "f=1,b=0"}) {
        const int parts = std::string(scheme) == "interleaved" ? 2 : 1;
        MustCompile({.scheme = scheme, .shape = {4, 8, parts}, .p2p = p2p, .costs = costs});
      }
}

}  // namespace pp
