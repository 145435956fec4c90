#include "runtime/comm/collectives.h"

#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/plan/binding.h"

namespace pp {
namespace {

Program MakeProgram(int devices) {
  ModelConfig model;
  model.vocab_size = 50;
  model.n_positions = 8;
  model.n_embd = 16;
  model.n_layer = 4;
  model.n_head = 2;
  model.n_inner = 64;
  auto program = Compile({.scheme = "1f1b", .shape = {devices, 4, 0}, .model = model});
  INFO(program.status().message());
  REQUIRE(program.ok());
  return std::move(*program);
}

// All devices of a program, in one thread.
struct Machine {
  explicit Machine(const Program& program)
      : program(program), transports(MakeInProcessTransports(program.devices)) {
    for (const DeviceList& list : program.lists) {
      auto arena = Arena::Take(list.arena_bytes);
      REQUIRE(arena.ok());
      arenas.push_back(std::move(*arena));
    }
  }
  // The accumulator of the look-up or of the head, on the device that has it.
  float* Tied(int stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    const int device = program.pipes[0].device_of[stage];
    const int64_t offset = stage == 0 ? layout.tied_lookup : layout.tied_head;
    return reinterpret_cast<float*>(BindStage(program, device, stage, arenas[device]).wgrad +
                                    offset);
  }
  // Runs one collective of each device side by side.
  template <typename Collective>
  void Run() {
    std::vector<Collective> parts;
    std::vector<bool> over(program.devices, false);
    for (int d = 0; d < program.devices; ++d)
      parts.emplace_back(program, d, arenas[d], transports[d].get());
    for (auto& part : parts) CHECK(part.Start().ok());
    for (int round = 0; round < 100000; ++round) {
      bool all = true;
      for (int d = 0; d < program.devices; ++d) {
        bool now = over[d];
        if (!now) CHECK(parts[d].Test(&now).ok());
        over[d] = now;
        all = all && now;
      }
      if (all) return;
    }
    FAIL("does not end");
  }

  const Program& program;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Arena> arenas;
};

TEST_CASE("the tied gradients are summed on both devices, piece by piece") {
  const int64_t piece = GENERATE(64, 100, 1 << 20);
  Program program = MakeProgram(2);
  for (DeviceList& list : program.lists)
    for (Region& region : list.regions)
      if (region.kind == Kind::kExchange) region.bytes = std::min(region.bytes, piece);
  Machine machine(program);
  const int64_t count = 50 * 16;
  for (int64_t i = 0; i < count; ++i) {
    machine.Tied(0)[i] = static_cast<float>(i);
    machine.Tied(1)[i] = 0.5f;
  }
  machine.Run<TiedSum>();
  for (int64_t i = 0; i < count; ++i) {
    CHECK(machine.Tied(0)[i] == static_cast<float>(i) + 0.5f);
    CHECK(machine.Tied(1)[i] == static_cast<float>(i) + 0.5f);
  }
}

TEST_CASE("on one device the sum is there, too") {
  const Program program = MakeProgram(1);
  Machine machine(program);
  const StageLayout layout = LayoutStage(*program.job, 0);
  float* lookup = machine.Tied(0);
  float* head = lookup + (layout.tied_head - layout.tied_lookup) / 4;
  lookup[3] = 1;
  head[3] = 2;
  machine.Run<TiedSum>();
  CHECK(lookup[3] == 3);
}

TEST_CASE("every device has the norm's blocks of all") {
  const Program program = MakeProgram(4);
  Machine machine(program);
  const int64_t blocks = NormBlocks(*program.job);
  auto norm = [&](int device) {
    const Region* region = FindRegion(program.lists[device], Kind::kNorm, -1);
    return reinterpret_cast<double*>(machine.arenas[device].at(region->offset));
  };
  for (int stage = 0; stage < program.stages; ++stage) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    for (int64_t i = 0; i < layout.norm_blocks; ++i)
      norm(program.pipes[0].device_of[stage])[layout.first_norm_block + i] =
          static_cast<double>(layout.first_norm_block + i);
  }
  machine.Run<NormGather>();
  for (int d = 0; d < program.devices; ++d)
    for (int64_t i = 0; i < blocks; ++i) CHECK(norm(d)[i] == static_cast<double>(i));
}

}  // namespace
}  // namespace pp
