// Planted bugs that the plain proof cannot see, each found by the rule of NCCL that it breaks.
#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "schema/nccl/prove.h"
#include "schema/play/play.h"
#include "schema/text.h"
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

// The plan with this list of device 1; the plain proof passes it.
Program MustImport(const char* device1) {
  auto lists = Parse(std::string(kDevice0) + device1, "text");
  INFO(lists.status().message());
  REQUIRE(lists.ok());
  auto plan = CompileLists(std::move(*lists), {"text"}, {});
  INFO(plan.status().message());
  REQUIRE(plan.ok());
  return std::move(*plan);
}

Result<Needs> Prove(const Program& plan, const Terms& terms) {
  std::vector<WaitsFor> waits_for;
  const Status status = Verify(plan, Depth::kPlan, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  return Prove(plan, waits_for, terms);
}

std::string ErrorOf(const Program& plan, const Terms& terms) {
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
  const Assignment one = Assign(*traffic, {.most = Sharing::kAll});
  auto play = [&](Groups groups) {
    return play::Play(plan, *traffic, MakeStreams(*traffic, one, groups), {}, nullptr);
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

TEST_CASE("collectives of one set of devices share a communicator") {
  const Program plan = MustCompile({.scheme = "chimera", .shape = {4, 8}});
  const auto needs = Prove(plan, {});
  REQUIRE(needs.ok());
  CHECK(needs->assignment.Collectives() == 3);  // devices 0 and 3, 1 and 2, and all for the norm
  CHECK(needs->assignment.Messages() == 6);
  CHECK(needs->kernels == 6);  // two neighbours in two directions, and two collectives
}

TEST_CASE("blocking messages follow one another anyway") {
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {4, 8}, .p2p = P2p::kBlocking});
  CHECK(ErrorOf(plan, {}) == "safe: 1 communicator for all messages");
}

TEST_CASE("each pair of devices has as few communicators as it can") {
  // Devices 0 and 1 exchange nothing in the steady state; 1 and 2 do.
  const Program plan = MustCompile({.scheme = "1f1b", .shape = {3, 2}});
  CHECK(ErrorOf(plan, {}) ==
        "safe: 3 communicators, 1 for a pair of devices and 2 for one direction of a pair of "
        "devices");
}

}  // namespace pp::nccl
