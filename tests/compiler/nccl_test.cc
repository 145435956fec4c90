// Planted bugs that the plain proof cannot see, each found by the rule of NCCL that it breaks.
#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "schema/nccl/prove.h"
#include "schema/play/play.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp::nccl {
namespace {

// Device 0 forwards its value, and then takes the other one's.
constexpr const char* kDevice0 = R"(
program two stages 2 microbatches 2
device 0 holds s0
  FW s0 m0
  SEND_act s0 m0 to d1
  FW s0 m1
  SEND_act s0 m1 to d1
  RECV_grad s0 m0 from d1
  BW s0 m0
  RECV_grad s0 m1 from d1
  BW s0 m1
device 1 holds s1
)";

// Device 1 does the same.
constexpr const char* kBothSendFirst = R"(
  RECV_act s0 m0 from d0
  FW s1 m0
  BW s1 m0
  SEND_grad s0 m0 to d0
  RECV_act s0 m1 from d0
  FW s1 m1
  BW s1 m1
  SEND_grad s0 m1 to d0
)";

// Device 1 takes first.
constexpr const char* kOneTakesFirst = R"(
  RECV_act s0 m0 from d0
  FW s1 m0
  BW s1 m0
  RECV_act s0 m1 from d0
  SEND_grad s0 m0 to d0
  FW s1 m1
  BW s1 m1
  SEND_grad s0 m1 to d0
)";

Program MustParse(const char* text) {
  auto plan = Parse(text, "text");
  INFO(plan.status().message());
  REQUIRE(plan.ok());
  auto lowered = CompileLists(std::move(*plan), {"text"}, {});
  INFO(lowered.status().message());
  REQUIRE(lowered.ok());
  return std::move(*lowered);
}

// The plan with this list of device 1; the plain proof passes it.
Program MustImport(const char* device1) {
  return MustParse((std::string(kDevice0) + device1).c_str());
}

std::string ErrorOf(const Program& plan, const Terms& terms) {
  const Status status = Verify(plan, Depth::kPlan);
  INFO(status.message());
  REQUIRE(status.ok());
  const auto needs = Prove(plan, terms);
  return needs.ok() ? "safe: " + ToText(needs->assignment) : needs.status().message();
}

}  // namespace

TEST_CASE("both ends send first: a deadlock in one stream, none in one a direction") {
  const Program plan = MustImport(kBothSendFirst);
  CHECK(ErrorOf(plan, {}) == "safe: 2 communicators, each for one direction of a pair of devices");
  CHECK(ErrorOf(plan, {.sharing = Sharing::kPair}) ==
        "1 communicator for a pair of devices: deadlock: "
        "device 0 'RECV_grad s0 m0 from d1' (instruction 6) is queued behind "
        "device 0 'SEND_act s0 m1 to d1' (instruction 5), which waits to be matched by "
        "device 1 'RECV_act s0 m1 from d0' (instruction 6), which is queued behind "
        "device 1 'SEND_grad s0 m0 to d0' (instruction 5), which waits to be matched by the first "
        "(2 communicators, each for one direction of a pair of devices: safe and free of stalls; "
        "in groups of adjacent messages: safe, but they stall)");
  CHECK(ErrorOf(plan, {.sharing = Sharing::kDirection}) ==
        "safe: 2 communicators, each for one direction of a pair of devices");
}

TEST_CASE("one end takes first: no deadlock in one stream, but a stall") {
  const Program plan = MustImport(kOneTakesFirst);
  CHECK_THAT(ErrorOf(plan, {.sharing = Sharing::kAll}),
             Catch::StartsWith(
                 "1 communicator for all messages: stall: device 0 'RECV_grad s0 m0 from d1' "
                 "(instruction 6) may wait behind device 0 'SEND_act s0 m1 to d1' "
                 "(instruction 5) with its data and its partner ready"));
  CHECK(ErrorOf(plan, {}) == "safe: 2 communicators, each for one direction of a pair of devices");
}

TEST_CASE("operations of a group progress together") {
  const Program plan = MustImport(kBothSendFirst);
  CHECK_THAT(ErrorOf(plan, {.sharing = Sharing::kPair, .groups = Groups::kAdjacent}),
             Catch::Contains("stall: ") && !Catch::Contains("deadlock"));
  // Without a WAIT between the two there is nothing else to do in between: a group that costs
  // nothing.
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(plan, Depth::kPlan, &waits_for).ok());
  const auto traffic = play::FindTraffic(plan, waits_for);
  REQUIRE(traffic.ok());
  auto play = [&](Groups groups) {
    return play::Play(plan, *traffic, MakeStreams(*traffic, {.groups = groups}), {}, nullptr);
  };
  CHECK(!play(Groups::kNone).ok());
  CHECK(play(Groups::kAdjacent).ok());
}

TEST_CASE("kernels that hold the device keep out those that would let them go on") {
  const Program plan = MustImport(kBothSendFirst);
  CHECK_THAT(ErrorOf(plan, {.kernels = 1}),
             Catch::Contains("1 of 3 kernels at once on a device: deadlock: ") &&
                 Catch::Contains("finds no room alongside") &&
                 Catch::EndsWith("(at least 3 at once)"));
  CHECK_THAT(ErrorOf(plan, {.kernels = 2}), Catch::Contains("not proved safe"));
  CHECK_THAT(ErrorOf(plan, {.kernels = 3}), Catch::StartsWith("safe"));
}

// Each device reaches its previous neighbour first, including the first device.
TEST_CASE("a ring of communicators that are made at their first use") {
  Program plan = MustCompile({.scheme = "interleaved", .shape = {4, 4, 2}});
  const Terms lazy{.creation = Creation::kFirstUse};
  CHECK_THAT(ErrorOf(plan, lazy), Catch::StartsWith("safe"));
  auto& list = plan.lists[0].body;
  const auto receive = std::find_if(list.begin(), list.end(),
                                    [](const Instruction& i) { return i.op == Op::kRecvAct; });
  REQUIRE(receive->peer == 3);
  std::rotate(list.begin(), receive, receive + 1);
  REQUIRE(Lower(plan, Form::kLists, {}).ok());
  CHECK_THAT(ErrorOf(plan, {}), Catch::StartsWith("safe"));
  CHECK_THAT(
      ErrorOf(plan, lazy),
      Catch::Contains("where communicators are made at their first use: deadlock: device 0 "
                      "'RECV_act s3 m0 from d3' (instruction 0) waits to be matched by device 3") &&
          Catch::EndsWith("(make them before the first step, in one order)"));
}

TEST_CASE("all collectives share a communicator, as in the runtime") {
  const Program plan = MustCompile({.scheme = "chimera", .shape = {4, 8}});
  const auto needs = Prove(plan, {});
  REQUIRE(needs.ok());
  CHECK(needs->assignment.Count(Use::kReductions) == 1);
  CHECK(needs->assignment.Count(Use::kMessages) == 6);
  CHECK(needs->most.streams == 5);  // two neighbours in two directions, and collectives
}

// Such as one over two stages' devices before one over a stage's replicas.
TEST_CASE("a collective that waits for those before it is no stall") {
  for (const int zero : {0, 1}) {
    const Program plan = MustCompile({.scheme = "1f1b",
                                      .shape = {4, 4},
                                      .replicas = 2,
                                      .zero = zero,
                                      .job = {.model = SmallModel("gpt2", true, 4, 4)}});
    CHECK_THAT(ErrorOf(plan, {.sharing = Sharing::kKind}), Catch::StartsWith("safe"));
    // All devices create their communicator, those of the first collective and the others.
    CHECK_THAT(ErrorOf(plan, {.creation = Creation::kFirstUse}), Catch::StartsWith("safe"));
  }
}

// Megatron-LM issue 1810, with reductions.
TEST_CASE("collectives in two orders on two ranks: refused by either proof") {
  Program plan = MustCompile({.scheme = "chimera", .shape = {2, 2}, .reduce = Reduce::kLate});
  auto& list = plan.lists[1].body;
  std::vector<Instruction*> reductions;
  for (Instruction& i : list)
    if (i.op == Op::kReduceGrad) reductions.push_back(&i);
  REQUIRE(reductions.size() == 2);
  std::swap(*reductions[0], *reductions[1]);
  CHECK_THAT(Verify(plan, Depth::kPlan).message(),
             Catch::Contains("device 0 starts them in this order, device 1 the other way round"));
  CHECK_THAT(Prove(plan, {}).status().message(), Catch::Contains(": deadlock: device 0 ") &&
                                                     Catch::Contains("'REDUCE_grad s1 b0 p0'") &&
                                                     Catch::Contains("is queued behind"));
}

// Of two pipes. Device 1 sends before it reduces, device 0 reduces before it receives.
TEST_CASE("two communicators in one stream, launched in different orders") {
  const Program plan = MustParse(R"(
program two stages 2 microbatches 2
pipe d0 d1
pipe d1 d0
micro-batches on pipes 0 1
clip off
device 0 holds s0 s1
  LOAD s0 m0
  FW s0 m0
  SEND_act s0 m0 to d1
  LOAD s1 m1
  RECV_act s0 m1 from d1
  WAIT act s0 m1
  FW s1 m1
  WAIT act s0 m0 sent
  BW s1 m1
  SEND_grad s0 m1 to d1
  REDUCE_grad s1 b0 p1
  RECV_grad s0 m0 from d1
  WAIT grad s0 m0
  BW s0 m0
  WAIT grad s0 m1 sent
  REDUCE_grad s0 b0 p0
  WAIT wgrad s0 b0 p0
  WAIT wgrad s1 b0 p1
  STEP s0 p0
  STEP s1 p1
device 1 holds s0 s1
  LOAD s1 m0
  RECV_act s0 m0 from d0
  WAIT act s0 m0
  FW s1 m0
  LOAD s0 m1
  FW s0 m1
  SEND_act s0 m1 to d0
  BW s1 m0
  WAIT act s0 m1 sent
  RECV_grad s0 m1 from d0
  SEND_grad s0 m0 to d0
  REDUCE_grad s1 b0 p0
  WAIT grad s0 m1
  BW s0 m1
  WAIT grad s0 m0 sent
  REDUCE_grad s0 b0 p1
  WAIT wgrad s0 b0 p1
  WAIT wgrad s1 b0 p0
  STEP s0 p1
  STEP s1 p0
)");
  CHECK(ErrorOf(plan, {.sharing = Sharing::kAll}) == "safe: 1 communicator for all messages");
  CHECK(ErrorOf(plan, {.sharing = Sharing::kAll, .stream_per = StreamPer::kDevice}) ==
        "1 communicator for all messages, in one stream of a device: deadlock: "
        "device 0 'RECV_grad s0 m0 from d1' (instruction 11) is queued behind "
        "device 0 'REDUCE_grad s1 b0 p1' (instruction 10), which waits to be matched by "
        "device 1 'REDUCE_grad s1 b0 p0' (instruction 11), which is queued behind "
        "device 1 'SEND_grad s0 m0 to d0' (instruction 10), which waits to be matched by the first "
        "(1 communicator for all messages, in streams of their own: safe and free of stalls)");
}

// A replica may be late: then device 1 has not reduced when device 0 is in the next step.
TEST_CASE("a message waits behind a collective of the step before") {
  for (const bool clip : {true, false}) {
    const Program plan =
        MustCompile({.scheme = "1f1b", .shape = {2, 1}, .replicas = 2, .clip = clip});
    const std::string error =
        ErrorOf(plan, {.sharing = Sharing::kAll, .stream_per = StreamPer::kDevice});
    if (clip) {
      CHECK(error == "safe: 1 communicator for all messages");
    } else {
      CHECK_THAT(error,
                 Catch::Contains("two steps in a row: stall: "
                                 "device 1 'RECV_act s0 m1 from d0' (instruction 11) may "
                                 "wait behind device 1 'REDUCE_grad s1 b0' (instruction 6)"));
    }
  }
}

// In an evaluation nothing comes back to the first device, which begins the next one.
TEST_CASE("an evaluation several times in a row") {
  const Program plan = MustCompile(
      {.scheme = "gpipe", .shape = {3, 1}, .job = {.model = SmallModel("gpt2", false, 3, 4)}});
  CHECK_THAT(ErrorOf(plan, {.sharing = Sharing::kAll}),
             Catch::Contains(
                 "evaluation several times in a row: stall: device 1 'RECV_act s0 m2 from d0'"));
}

TEST_CASE("a device has as many hardware queues as its streams") {
  const auto plan = [](int tp) {
    return MustCompile({.scheme = "chimera",
                        .shape = {4, 4},
                        .job = {.model = SmallModel("gpt2", true, 4, 4), .tp = tp}});
  };
  const Program alone = plan(1), peers = plan(2);
  CHECK_THAT(ErrorOf(alone, {.queues = 22}), Catch::StartsWith("safe"));
  CHECK(ErrorOf(alone, {.queues = 21}) ==
        "6 communicators, each for one direction of a pair of devices: device 1 needs 22 hardware "
        "queues of 21: 7 for its own streams, 5 for those of 5 communicators and 10 for NCCL's "
        "(CUDA_DEVICE_MAX_CONNECTIONS from 22 to 32)");
  CHECK_THAT(ErrorOf(peers, {.queues = 25}), Catch::StartsWith("safe"));
  CHECK_THAT(
      ErrorOf(peers, {.queues = 24}),
      Catch::Contains("device 1 needs 25 hardware queues of 24: 7 for its own streams, 6 for "
                      "those of 6 communicators and 12 for NCCL's"));
  CHECK_THAT(ErrorOf(alone, {.sharing = Sharing::kKind}),
             Catch::Contains("device 1 needs 34 hardware queues of 32") &&
                 Catch::EndsWith("(6 communicators, each for one direction of a pair of devices: "
                                 "at most 22)"));
  // Streams that are shared are fewer, communicators are not.
  const auto shared = Prove(MustCompile({.scheme = "gpipe", .shape = {3, 1}}),
                            {.sharing = Sharing::kPair, .stream_per = StreamPer::kDevice});
  REQUIRE(shared.ok());
  CHECK(shared->most.streams == 1);
  CHECK(shared->most.Queues() == 7 + 1 + 2 * 3);
}

TEST_CASE("the kernels of tensor-parallel peers need room, too") {
  const Program plan = MustCompile({.scheme = "1f1b",
                                    .shape = {2, 2},
                                    .job = {.model = SmallModel("gpt2", true, 4, 4), .tp = 2}});
  CHECK_THAT(ErrorOf(plan, {.kernels = 4}), Catch::StartsWith("safe"));
  CHECK_THAT(ErrorOf(plan, {.kernels = 3}),
             Catch::Contains("3 of 4 kernels at once on a device: not proved safe"));
}

TEST_CASE("blocking messages follow one another anyway") {
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {4, 8}, .p2p = P2p::kBlocking});
  CHECK(ErrorOf(plan, {}) == "safe: 1 communicator for all messages");
}

// Whether a stall is possible takes the longest to find out where pipelines are deep and cross.
TEST_CASE("deep pipelines need no more communicators than shallow ones") {
  for (const char* scheme : {"dualpipe", "zb-v"}) {
    const auto directions = [&](int devices) {
      const Program program = MustCompile({.scheme = scheme, .shape = {devices, 2 * devices, 0}});
      return Prove(program, {})->assignment.Count(Use::kMessages);
    };
    CHECK(directions(8) == 14);
    CHECK(directions(64) == 126);
  }
}

TEST_CASE("each pair of devices has as few communicators as it can") {
  // Devices 0 and 1 exchange nothing in the steady state; 1 and 2 do.
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {3, 2}});
  CHECK(ErrorOf(plan, {}) ==
        "safe: 3 communicators, 1 for a pair of devices and 2 for one direction of a pair of "
        "devices");
}

}  // namespace pp::nccl
