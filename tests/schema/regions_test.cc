// The sizes of what a device holds permanently, by hand.
#include "schema/semantics/regions.h"

#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "schema/proof/verify.h"
#include "schema/semantics/buckets.h"
#include "tests/models.h"

namespace pp {
namespace {

// Its embedding has 2 MiB, its other tensors little.
ModelConfig WideModel(bool tied) {
  ModelConfig model = Gpt2Model({.vocab_size = 4096,
                                 .max_positions = 16,
                                 .hidden_size = 128,
                                 .layers = 4,
                                 .heads = 2,
                                 .intermediate_size = 512});
  model.tied = tied;
  return model;
}

// Bytes of the device's region, 0 if there is none; of a stage's, of its copy in any pipe.
int64_t BytesOf(CompileOptions options, bool tied, int device, Kind kind, int stage = -1) {
  options.job.model = WideModel(tied);
  const auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  for (const Region& region : Regions(*program).On(device))
    if (region.kind == kind && (stage < 0 || region.stage == stage)) return region.bytes;
  return 0;
}

}  // namespace

TEST_CASE("the exchange region has a piece for each other member") {
  constexpr int64_t kMiB = 1 << 20;
  auto exchange = [](const CompileOptions& options, bool tied, int device) {
    return BytesOf(options, tied, device, Kind::kExchange);
  };
  // Nothing is reduced.
  CHECK(exchange({.scheme = "1f1b", .shape = {4, 4}}, false, 0) == 0);
  CHECK(exchange({.scheme = "1f1b", .shape = {1, 4}}, true, 0) == 0);
  // Two ends: half the embedding from the other one.
  for (int device : {0, 3})
    CHECK(exchange({.scheme = "1f1b", .shape = {4, 4}}, true, device) == kMiB);
  CHECK(exchange({.scheme = "1f1b", .shape = {4, 4}}, true, 1) == 0);
  // Two ends of four replicas: of eight members a piece of 256 KiB from seven.
  const CompileOptions replicas{.scheme = "1f1b", .shape = {4, 4}, .replicas = 4};
  CHECK(exchange(replicas, true, 0) == 7 * kMiB / 4);
  // In the middle four replicas of a stage of 0.76 MiB, in blocks of at most 256 KiB.
  const int64_t middle = exchange(replicas, false, 1);
  CHECK(middle % (3 * kAlign) == 0);
  CHECK(middle <= 3 * (kMiB / 4 + kAlign) + 3 * kMiB / 16);
  CHECK(middle >= 3 * 3 * kMiB / 16);
  // Chimera: device 0 and device 3 hold both ends, each one of each pipe.
  CHECK(exchange({.scheme = "chimera", .shape = {4, 4}}, true, 3) == kMiB);
}

TEST_CASE("the loss region has a double for each micro-batch, wherever the last stage is") {
  for (int device : {0, 1})
    CHECK(BytesOf({.scheme = "chimera", .shape = {2, 4}}, true, device, Kind::kLoss) == 4 * 8);
  CHECK(BytesOf({.scheme = "1f1b", .shape = {2, 4}}, true, 0, Kind::kLoss) == 0);
  // Of the program's step, not of several.
  CHECK(BytesOf({.scheme = "pipedream", .shape = {2, 4}}, false, 1, Kind::kLoss) == 4 * 8);
}

TEST_CASE("without a norm there is no region for it") {
  CHECK(BytesOf({.scheme = "1f1b", .shape = {2, 4}}, true, 0, Kind::kNorm) > 0);
  CHECK(BytesOf({.scheme = "1f1b", .shape = {2, 4}, .clip = false}, true, 0, Kind::kNorm) == 0);
  CHECK(BytesOf({.scheme = "pipedream", .shape = {2, 4}}, false, 0, Kind::kNorm) == 0);
}

TEST_CASE("the optimizer region has the two moments of the shards of the fullest copy") {
  for (int zero : {0, 1}) {
    const CompileOptions options{.scheme = "1f1b",
                                 .shape = {4, 4},
                                 .replicas = 3,
                                 .zero = zero,
                                 .job = {.model = WideModel(true)}};
    const auto program = Compile(options);
    REQUIRE(program.ok());
    for (int stage = 0; stage < 4; ++stage) {
      const StageLayout layout = LayoutStage(*program->job, stage);
      int64_t most = layout.optimizer_bytes;
      if (zero == 1) {
        most = 0;
        for (int64_t copy = 0; copy < 3; ++copy)
          most =
              std::max(most, OptimizerShardsOf(layout, BucketsOf(*program, stage), 3, copy).bytes);
      }
      CHECK(BytesOf(options, true, stage, Kind::kOptimizer, stage) == most);
    }
  }
}

TEST_CASE("a plan for one kind of device becomes one for the other") {
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16})
    for (const DeviceKind from : {DeviceKind::kCpu, DeviceKind::kCuda}) {
      const DeviceKind to = from == DeviceKind::kCpu ? DeviceKind::kCuda : DeviceKind::kCpu;
      const auto compiled =
          Compile({.scheme = "1f1b",
                   .shape = {2, 4},
                   .job = {.model = WideModel(true), .dtype = dtype, .backend = from}});
      REQUIRE(compiled.status().message() == "");
      Program program = *compiled;
      const std::vector<int64_t> added = AddRegions(to, &program);
      CHECK(Verify(program, Depth::kPlan).message() == "");
      for (int d = 0; d < program.devices; ++d) {
        CHECK(program.lists[d].regions.size() == Regions(program).On(d).size());
        CHECK(program.lists[d].arena_bytes == compiled->lists[d].arena_bytes + added[d]);
        CHECK((added[d] > 0) == (to == DeviceKind::kCuda));
      }
      // A CPU has no rounded weights; they are not its plan's.
      program.lists[0].regions = compiled->lists[0].regions;
      CHECK(Verify(program, Depth::kPlan).message().starts_with("device 0: "));
    }
}

}  // namespace pp
