// The engine of lowered lists: times and causes that were computed by hand, and the cycle of every
// deadlock, read back from its text.
#include "schema/play/play.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <random>

#include "compiler/scheme.h"
#include "schema/nccl/prove.h"
#include "schema/play/execute.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/cycle.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Program MustParse(const std::string& text) {
  auto program = Parse(text, "text");
  INFO(program.status().message());
  REQUIRE(program.ok());
  return std::move(*program);
}

Execution MustExecute(const Program& program, const std::string& costs) {
  std::vector<WaitsFor> waits_for;
  const Status status = Verify(program, Depth::kLists, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  Execution execution;
  REQUIRE(Execute(program, waits_for, *ParseCosts(costs, program.stages), &execution).ok());
  return execution;
}

// Both activations go through one channel; device 0 waits only for the gradients.
constexpr const char* kTwo = R"(
program two stages 2 microbatches 2
device 0 holds s0
  LOAD s0 m0
  FW s0 m0
  SEND_act s0 m0 to d1
  LOAD s0 m1
  FW s0 m1
  SEND_act s0 m1 to d1
  RECV_grad s0 m0 from d1
  WAIT grad s0 m0
  BW s0 m0
  RECV_grad s0 m1 from d1
  WAIT grad s0 m1
  BW s0 m1
  WAIT act s0 m0 sent
  WAIT act s0 m1 sent
  NORM_grad s0
  REDUCE_norm
  WAIT norm
  STEP s0
device 1 holds s1
  RECV_act s0 m0 from d0
  LOAD s1 m0
  WAIT act s0 m0
  FW s1 m0
  BW s1 m0
  SEND_grad s0 m0 to d0
  RECV_act s0 m1 from d0
  LOAD s1 m1
  WAIT act s0 m1
  FW s1 m1
  BW s1 m1
  SEND_grad s0 m1 to d0
  WAIT grad s0 m0 sent
  WAIT grad s0 m1 sent
  NORM_grad s1
  REDUCE_norm
  WAIT norm
  STEP s1
)";

}  // namespace

// d0 |F0 |F1 |                 |B0    |          |B1    |        f=1, b=2; a message occupies its
//        ──m0───────── ──m1─────────             channel for 3 and arrives 0.5 later
// d1                 |F0 |B0    |F1 |B1    |
TEST_CASE("times and causes of two devices, by hand") {
  const Program two = MustParse(kTwo);
  const Execution e = MustExecute(two, "f=1,b=2,comm=3,latency=0.5");
  const auto span = [&](int device, size_t i) {
    return std::pair(e.spans[device][i].start, e.spans[device][i].end);
  };
  CHECK(span(0, 2) == std::pair(1.0, 4.0));    // SEND_act m0
  CHECK(span(0, 5) == std::pair(4.0, 7.0));    // SEND_act m1 leaves when m0 has left
  CHECK(span(1, 0) == std::pair(1.5, 4.5));    // RECV_act m0, seen from its arrival
  CHECK(span(1, 3) == std::pair(4.5, 5.5));    // FW s1 m0
  CHECK(span(1, 9) == std::pair(7.5, 8.5));    // BW s1 m0 is over: FW s1 m1
  CHECK(span(0, 8) == std::pair(11.0, 13.0));  // BW s0 m0: sent at 7.5
  CHECK(e.makespan == 16);
  const auto start_of = [&](int device, int32_t index) {
    const auto end =
        std::find_if(e.traffic.ends.begin(), e.traffic.ends.end(),
                     [&](const play::End& at) { return at.device == device && at.index == index; });
    return e.played.starts[end->transfer];
  };
  CHECK(!start_of(0, 2).queued);
  CHECK(start_of(0, 5).queued);
  CHECK(e.traffic.ends[start_of(0, 5).end].device == 0);
  CHECK(start_of(1, 11).time == 10.5);
}

TEST_CASE("each cycle that the golden files print is one") {
  int deadlocks = 0;
  for (const auto& file : std::filesystem::directory_iterator("tests/golden")) {
    if (file.path().extension() != ".txt") continue;
    std::ifstream in(file.path());
    for (std::string line; std::getline(in, line);) {
      if (line.find("deadlock:") == std::string::npos) continue;
      INFO(file.path() << ": " << line);
      CHECK(FaultOfCycle(line) == "");
      ++deadlocks;
    }
  }
  CHECK(deadlocks >= 18);
}

TEST_CASE("a moved message, WAIT or collective: each deadlock is a cycle") {
  std::mt19937 random(5);
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  int deadlocks = 0, with_nccl = 0;
  for (const Scheme& scheme : Schemes())
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
      const Program plan =
          MustCompile({.scheme = std::string(scheme.name),
                       .shape = {.devices = 4, .microbatches = 8, .stages_per_device = 0},
                       .p2p = p2p});
      for (int round = 0; round < 200; ++round) {
        Program broken = plan;
        auto& list = broken.lists[below(4)].body;
        const auto from = list.begin() + static_cast<int64_t>(below(list.size()));
        if (Info(from->op).lane == Lane::kCompute && from->op != Op::kWait) continue;
        if (round % 2 == 0) {
          std::rotate(from, from + 1, from + std::min<int64_t>(2 + below(6), list.end() - from));
        } else {
          std::rotate(from - std::min<int64_t>(1 + below(6), from - list.begin()), from, from + 1);
        }
        for (DeviceList& moved : broken.lists) moved.arena_bytes = 0;  // its memory is not planned
        std::string error = Verify(broken, Depth::kLists).message();
        const bool passed = error.empty();
        for (const auto sharing : {nccl::Sharing::kAll, nccl::Sharing::kPair}) {
          if (passed) error = nccl::Prove(broken, {.sharing = sharing}).status().message();
          if (error.find("deadlock:") == std::string::npos) continue;
          INFO(scheme.name << ": " << error);
          if (error.find(" more") == std::string::npos) CHECK(FaultOfCycle(error) == "");
          ++(passed ? with_nccl : deadlocks);
          if (!passed) break;
        }
      }
    }
  CHECK(deadlocks > 50);
  CHECK(with_nccl > 50);
}

}  // namespace pp
