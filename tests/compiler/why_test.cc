// Idle time by cause, what a cause costs, and the critical path: against their definitions, over
// all schemes.
#include "compiler/why.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "compiler/scheme.h"
#include "compiler/simulate.h"
#include "schema/proof/verify.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

struct Explained {
  Program program;
  CostModel costs;
  Prediction prediction;
};

Explained MustExplain(Program program, const std::string& costs, const NetworkModel& network) {
  Explained e{.program = std::move(program)};
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(e.program, Depth::kPlan, &waits_for).ok());
  e.costs = *ParseCosts(costs, e.program.stages);
  auto prediction = Simulate(e.program, waits_for, e.costs, network);
  INFO(prediction.status().message());
  REQUIRE(prediction.ok());
  e.prediction = std::move(*prediction);
  auto why = Explain(e.program, e.costs, e.prediction);
  INFO(why.status().message());
  REQUIRE(why.ok());
  e.prediction.why = std::move(*why);
  return e;
}

Explained MustExplain(const CompileOptions& options, const std::string& costs,
                      const NetworkModel& network = {}) {
  return MustExplain(MustCompile(options), costs, network);
}

double Saved(const Explained& e, Cause cause) {
  return e.prediction.why->saved[static_cast<size_t>(cause)];
}
double Gaps(const Explained& e, Cause cause) {
  double sum = 0;
  for (const Idle& idle : e.prediction.why->idle) sum += idle.gaps[static_cast<size_t>(cause)];
  return sum;
}

constexpr const char* kCosts = "f=1,b=2,comm=0.3,latency=0.2,reduce=0.7,step=0.4";
constexpr const char* kContended =
    "f=1,b=2,comm=0.3,latency=0.2,post=0.05,reduce=0.7,contention=0.5,step=0.4";

void CheckIdle(const Explained& e) {
  const double makespan = e.prediction.makespan;
  for (size_t d = 0; d < e.prediction.devices.size(); ++d) {
    const Idle& idle = e.prediction.why->idle[d];
    CHECK(std::abs(idle.Sum() - (makespan - e.prediction.devices[d].busy)) <= 1e-9 * makespan);
    CHECK(idle.warm_up >= 0);
    CHECK(idle.drain >= -1e-9);
    CHECK(*std::min_element(idle.gaps.begin(), idle.gaps.end()) >= 0);
  }
  // On a shared link the order may change, and a message that comes earlier delay another one.
  for (size_t c = 0; c < kCauses.size(); ++c)
    if (!e.prediction.execution.links || (Cause(c) == Cause::kLink && !e.program.overlaps))
      CHECK(e.prediction.why->saved[c] >= -1e-9 * makespan);
}

// The steps follow one another without a hole, and each takes what its instruction takes.
void CheckPath(const Explained& e) {
  const auto& path = e.prediction.why->critical_path;
  const Program unrolled = Unrolled(e.program);
  const Durations durations(e.costs, unrolled);
  REQUIRE(!path.empty());
  CHECK(path.front().start == 0);
  if (!e.program.overlaps) CHECK(path.back().end == e.prediction.makespan);
  for (size_t i = 0; i < path.size(); ++i) {
    const PathStep& step = path[i];
    if (i > 0) CHECK(step.start == path[i - 1].end);
    const Instruction& at = step.instruction;
    const auto& list = unrolled.lists[step.device].body;
    const double takes = at.overlap ? durations.Pair(at, list[step.index + 1]) : durations(at);
    // A reduction that is on the path as what the compute lane lost to it.
    if (durations.Lost(at) > 0 && std::abs(step.end - step.start - durations.Lost(at)) < 1e-9)
      continue;
    const bool message = Info(at.op).lane == Lane::kSend;
    const double late = step.end - step.start - takes;
    const bool right =
        std::abs(late) < 1e-9 || (message && std::abs(late - durations.Latency(at)) < 1e-9);
    INFO(step.start << " to " << step.end << ": device " << step.device << " " << ToText(at) << ": "
                    << late << " more than " << takes);
    CHECK(right);
  }
}

}  // namespace

TEST_CASE("idle time by cause sums to the idle time, and the critical path has no hole") {
  for (const Scheme& scheme : Schemes())
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const int replicas : {1, 2})
        for (const bool model : {false, true})
          for (const NetworkModel& network :
               {NetworkModel{}, {TransportKind::kNccl}, {.shared_links = 1}, {.shared_links = 2}}) {
            CompileOptions options{
                .scheme = std::string(scheme.name),
                .shape = {.devices = 4, .microbatches = 8, .stages_per_device = 0},
                .p2p = p2p,
                .replicas = replicas};
            if (model) options.job.model = PaperModel(8);
            if (scheme.name.substr(0, 9) == "pipedream" && model) options.job.model.tied = false;
            INFO(scheme.name << " " << static_cast<int>(p2p) << " " << replicas << " " << model);
            for (const char* costs : {kCosts, kContended}) {
              const Explained e = MustExplain(options, costs, network);
              CheckIdle(e);
              CheckPath(e);
            }
          }
}

TEST_CASE("1F1B warms up and drains as in the papers") {
  const Explained e = MustExplain({.scheme = "1f1b", .shape = {4, 8}}, "f=1,b=2");
  for (int d = 0; d < 4; ++d) {
    const Idle& idle = e.prediction.why->idle[d];
    CHECK(idle.warm_up == d);
    CHECK(idle.drain == 2 * d);
    CHECK(idle.gaps[static_cast<size_t>(Cause::kDependence)] == 3 * (3 - d));
  }
}

// d0 waits 2.5 before B0 and 1 before B1, of which a message's time takes 0.25 each.
//
//   d0  F0 F1 ........ B0---- .... B1----
//   d1   . F0 B0---- F1 B1----
TEST_CASE("a message is waited for as long as it takes, and no longer") {
  const Explained e = MustExplain({.scheme = "1f1b", .shape = {2, 2}}, "f=1,b=2,comm=0.25");
  CHECK(Gaps(e, Cause::kMessage) == 0.5);
  CHECK(Gaps(e, Cause::kDependence) == 3);
  CHECK(Saved(e, Cause::kMessage) == 0.5);
}

// What takes no time is no cause, whatever the schedule and the transport; what nobody has,
// neither.
TEST_CASE("a cause whose removal saves nothing has no idle time") {
  for (const Scheme& scheme : Schemes())
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const int replicas : {1, 2})
        for (const NetworkModel& network :
             {NetworkModel{}, {TransportKind::kNccl}, {.shared_links = 1}}) {
          const CompileOptions options{
              .scheme = std::string(scheme.name),
              .shape = {.devices = 4, .microbatches = 8, .stages_per_device = 0},
              .p2p = p2p,
              .replicas = replicas};
          INFO(scheme.name << " " << static_cast<int>(p2p) << " " << replicas);
          const Explained free = MustExplain(options, "f=1,b=2.5,step=0.4", network);
          CHECK(Gaps(free, Cause::kMessage) == Approx(0).margin(1e-9));
          CHECK(Gaps(free, Cause::kReduction) == Approx(0).margin(1e-9));
          CHECK(Gaps(free, Cause::kLink) == Approx(0).margin(1e-9));
          CHECK((Gaps(free, Cause::kDependence) > 0) == !free.program.overlaps);
          // Messages that take time are waited for, and not for longer than all of them take.
          const Explained slow = MustExplain(options, "f=1,b=2.5,comm=0.25,latency=0.125", network);
          size_t messages = 0;
          for (const auto& transfer : slow.prediction.execution.traffic.transfers)
            messages += !slow.prediction.execution.traffic.flows[transfer.flow].IsCollective();
          CHECK(Gaps(slow, Cause::kMessage) <= 0.375 * static_cast<double>(messages) + 1e-9);
        }
}

TEST_CASE("what a cause would save is what simulation without it gives") {
  const auto makespan = [](const CompileOptions& options, const std::string& costs) {
    return MustExplain(options, costs).prediction.makespan;
  };
  const CompileOptions interleaved{.scheme = "interleaved", .shape = {4, 8, 2}};
  const Explained messages = MustExplain(interleaved, "f=1,b=2,comm=0.5,latency=0.25");
  CHECK(Saved(messages, Cause::kMessage) > 1);
  CHECK(Saved(messages, Cause::kMessage) ==
        Approx(messages.prediction.makespan - makespan(interleaved, "f=1,b=2")));

  const CompileOptions replicas{.scheme = "1f1b", .shape = {4, 8}, .replicas = 2};
  const Explained reductions = MustExplain(replicas, "f=1,b=2,reduce=3");
  CHECK(Saved(reductions, Cause::kReduction) > 1);
  CHECK(Saved(reductions, Cause::kReduction) ==
        Approx(reductions.prediction.makespan - makespan(replicas, "f=1,b=2")));

  CompileOptions norm{.scheme = "1f1b", .shape = {4, 8}};
  const Explained collectives = MustExplain(norm, "f=1,b=2,step=1:1:1:5");
  CHECK(Saved(collectives, Cause::kCollective) > 1);
  norm.clip = false;
  CHECK(Saved(collectives, Cause::kCollective) ==
        Approx(collectives.prediction.makespan - makespan(norm, "f=1,b=2,step=1:1:1:5")));

  // A rendezvous on a transport without: the plan as it says.
  const CompileOptions plain{.scheme = "1f1b", .shape = {4, 8}};
  const std::string costs = "f=1:1:1:2,b=2,comm=0.5";
  const Explained held = MustExplain(plain, costs, {TransportKind::kRendezvous});
  CHECK(Gaps(held, Cause::kRendezvous) > 0);
  CHECK(Saved(held, Cause::kRendezvous) > 0);
  CHECK(Saved(held, Cause::kRendezvous) ==
        Approx(held.prediction.makespan - makespan(plain, costs)));
}

// Without the cause "channel" each message has a stream of its own: a play that looks at all of a
// device's streams whenever one goes on would take minutes.
TEST_CASE("the causes of many messages") {
  constexpr int kMicros = 120'000;
  Program lists{.scheme = "lists", .devices = 2, .stages = 2, .microbatches = kMicros};
  lists.pipes = {{{0, 1}}};
  lists.pipe_of.assign(kMicros, 0);
  lists.lists.resize(2);
  for (int s = 0; s < 2; ++s) {
    auto& list = lists.lists[s].body;
    for (int m = 0; m < kMicros; ++m) list.push_back({.op = Op::kForward, .stage = s, .micro = m});
    for (int m = kMicros; m-- > 0;) list.push_back({.op = Op::kBackward, .stage = s, .micro = m});
  }
  auto plan = CompileLists(std::move(lists), {"lists"}, {});
  REQUIRE(plan.ok());
  const Explained e = MustExplain(std::move(*plan), "f=1,b=2,comm=0.5", {});
  // Device 1 is never idle but at its start and its end.
  CHECK(e.prediction.makespan == 3.0 * kMicros + 1 + 2 + 2 * 0.5);
  CheckIdle(e);
  CHECK(Saved(e, Cause::kMessage) == 1);
}

TEST_CASE("messages behind one another wait for their channel") {
  const Explained slow = MustExplain({.scheme = "gpipe", .shape = {2, 8}}, "f=1,b=2,comm=3");
  CHECK(Gaps(slow, Cause::kChannel) > 0);
  CHECK(Saved(slow, Cause::kChannel) > 0);
}

// Two stages on a device, one micro-batch on two replicas: the reduction of s1, which takes 4
// beside the backward of s0, which takes 2.
//
//   until 4   F F B(s1)
//   contention 0:   B(s0) until 6; reductions from 4 to 8 and to 12
//   contention 1/2: B(s0) from 6, as the device loses 2 to the first reduction, until 8; to 12
//   contention 1:   B(s0) from 8 until 10; reductions from 4 to 8 and from 10 to 14
TEST_CASE("a reduction takes its share of its device's time") {
  const CompileOptions options{
      .scheme = "interleaved", .shape = {1, 1, 2}, .replicas = 2, .clip = false};
  const auto prediction = [&](const std::string& costs) {
    return MustExplain(options, "f=2,b=4,reduce=8,contention=" + costs).prediction;
  };
  CHECK(prediction("0").makespan == 12);
  CHECK(prediction("0").devices[0].busy == 6);
  CHECK(prediction("0.5").makespan == 12);
  CHECK(prediction("0.5").devices[0].busy == 10);
  CHECK(prediction("1").makespan == 14);
  CHECK(prediction("1").devices[0].busy == 14);
  CHECK(prediction("1").bubble == 0);
}

// Each stage of interleaved 1F1B takes 1 forward and 2 backward, its reduction over two replicas 4.
//
//   from 12: device 1 has made grad s2 m1, which occupies its link out until 13, and then the
//   reduction of s3 both its links until 17. So grad s1 m1, made by device 0 at 15, enters it at
//   17, and grad s0 m0, made at 15, too, leaves it at 17. From 18 to 22 the reduction of s2
//   occupies device 0's links, so that grad s0 m1, made at 20, enters it at 22.
TEST_CASE("what shares a link occupies it in turn") {
  const CompileOptions options{.scheme = "interleaved", .shape = {2, 2, 2}, .replicas = 2};
  const std::string costs = "f=2,b=4,comm=1,reduce=8";
  const Explained own = MustExplain(options, costs);
  const Explained shared = MustExplain(options, costs, {.shared_links = 1});
  const auto sent = [&](const Explained& e, const std::string& text) {
    for (size_t d = 0; d < 2; ++d)
      for (size_t i = 0; i < e.program.lists[d].body.size(); ++i)
        if (ToText(e.program.lists[d].body[i]) == text)
          return e.prediction.execution.spans[d][i].start;
    return -1.0;
  };
  CHECK(sent(own, "SEND_grad s1 m1 to d1") == 15);
  CHECK(sent(own, "SEND_grad s0 m1 to d0") == 18);
  CHECK(own.prediction.makespan == 25);
  CHECK(sent(shared, "REDUCE_grad s3 b0") == 13);
  CHECK(sent(shared, "SEND_grad s1 m1 to d1") == 17);
  CHECK(sent(shared, "SEND_grad s0 m0 to d0") == 17);
  CHECK(sent(shared, "REDUCE_grad s2 b0") == 18);
  CHECK(sent(shared, "SEND_grad s0 m1 to d0") == 22);
  CHECK(shared.prediction.makespan == 29);
  CHECK(Saved(shared, Cause::kLink) == 29 - 25);
  CHECK(Saved(own, Cause::kLink) == 0);
  CHECK(Gaps(own, Cause::kLink) == 0);
  CHECK(Gaps(shared, Cause::kLink) > 0);
}

TEST_CASE("what stays in a node uses no link") {
  for (const char* scheme : {"1f1b", "chimera", "interleaved"}) {
    const CompileOptions options{.scheme = scheme, .shape = {4, 8, 0}};
    const auto makespan = [&](const std::string& costs, int shared_links) {
      return MustExplain(options, costs, {.shared_links = shared_links}).prediction.makespan;
    };
    CHECK(makespan(kCosts, 4) == makespan(kCosts, 0));
    const std::string slow = "f=1,b=2,comm=2,reduce=4";
    CHECK(makespan(slow, 4) == makespan(slow, 0));
    // 1F1B has one channel between two nodes in each direction.
    if (scheme != std::string("1f1b")) CHECK(makespan(slow, 2) > makespan(slow, 4));
    CHECK(makespan(slow, 1) >= makespan(slow, 0));
  }
}

// Device 0 may write its second activation only when the first one has left.
constexpr const char* kOneBuffer = R"(
program two stages 2 microbatches 2
device 0 holds s0
  LOAD s0 m0
  FW s0 m0
  SEND_act s0 m0 to d1
WAIT
  LOAD s0 m1
  FW s0 m1
  SEND_act s0 m1 to d1
  RECV_grad s0 m0 from d1
  WAIT grad s0 m0
  BW s0 m0
  RECV_grad s0 m1 from d1
  WAIT grad s0 m1
  BW s0 m1
LATER
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
  RECV_act s0 m1 from d0
  LOAD s1 m1
  WAIT act s0 m1
  FW s1 m1
  BW s1 m0
  SEND_grad s0 m0 to d0
  BW s1 m1
  SEND_grad s0 m1 to d0
  WAIT grad s0 m0 sent
  WAIT grad s0 m1 sent
  NORM_grad s1
  REDUCE_norm
  WAIT norm
  STEP s1
)";

TEST_CASE("a buffer that is written again waits for its message") {
  const auto explain = [](const char* place) {
    std::string text = kOneBuffer;
    const std::string wait = "  WAIT act s0 m0 sent";
    for (const std::string mark : {"WAIT\n", "LATER\n"})
      text.replace(text.find("\n" + mark) + 1, mark.size(), mark == place ? wait + "\n" : "");
    auto lists = Parse(text, "text");
    REQUIRE(lists.ok());
    auto plan = CompileLists(std::move(*lists), {"text"}, {});
    INFO(plan.status().message());
    REQUIRE(plan.ok());
    return MustExplain(std::move(*plan), "f=1,b=2,comm=3", {});
  };
  const Explained one = explain("WAIT\n"), two = explain("LATER\n");
  // Both have one buffer for gradients, which the second one waits for.
  const auto waits = [](const Explained& e) {
    return e.prediction.why->idle[0].gaps[static_cast<size_t>(Cause::kBuffer)];
  };
  CHECK(waits(one) == 3 + 3);
  CHECK(waits(two) == 3);
  CHECK(one.prediction.makespan == 21);
  CHECK(two.prediction.makespan == 20);
  CHECK(Saved(one, Cause::kBuffer) == 21 - 18);
  CHECK(Saved(two, Cause::kBuffer) == 20 - 18);
}

}  // namespace pp
