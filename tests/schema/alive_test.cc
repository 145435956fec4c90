// What plans without a model hold in bytes, computed by hand from their lists.
#include "schema/semantics/alive.h"

#include <catch2/catch.hpp>
#include <string>
#include <tuple>

#include "schema/sections.h"
#include "schema/text.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// "1227 at RECV_grad s0 m0 from d1".
std::string MostOf(const Program& plan, const std::string& costs, int device) {
  const Program program = Unrolled(plan);
  const CostModel model = *ParseCosts(costs, program.stages);
  const AliveBytes::Most most = AliveBytes(program, model).MostOn(device);
  return std::to_string(most.sum) + " at " + ToText(program.lists[device].body[most.index]);
}

std::string MostOf(const CompileOptions& options, const std::string& costs, int device) {
  return MostOf(MustCompile(options), costs, device);
}

}  // namespace

TEST_CASE("what kept forwards hold") {
  const CompileOptions options{.scheme = "1f1b", .shape = {2, 2}};
  const std::string costs = "stash=100:90,act=10,grad=7,weights=1000:900,transient=5:3";
  // Two stashes, the act that is being sent, its successor, and what is received; the backward that
  // has a transient of 5 comes when one act is sent.
  CHECK(MostOf(options, costs, 0) == "1227 at RECV_grad s0 m0 from d1");
  // A stash with its act in it, the next act, grad(0) and the transient.
  CHECK(MostOf(options, costs, 1) == "1010 at BW s1 m0");
  CompileOptions blocking = options;
  blocking.p2p = P2p::kBlocking;
  // An act goes with its SEND.
  CHECK(MostOf(blocking, costs, 0) == "1215 at FW s0 m1");
  CHECK(MostOf(blocking, costs, 1) == "1010 at BW s1 m0");
  // What is not given: grad as act, nothing else.
  CHECK(MostOf(options, "stash=100,act=10", 0) == "230 at RECV_grad s0 m0 from d1");
  CHECK(MostOf(options, "stash=99.5,act=10", 0) == "230 at RECV_grad s0 m0 from d1");
}

TEST_CASE("what checkpointed forwards hold") {
  const CompileOptions options{.scheme = "1f1b", .shape = {2, 2}, .passes = "apply-checkpoint"};
  const std::string costs = "stash=100:90,act=10,grad=7,transient=5:3";
  // One input of 12 is in the stash now, the other one waits; one act and one grad.
  CHECK(MostOf(options, costs + ",input=12:15", 0) == "134 at RE s0 m0");
  CHECK(MostOf(options, costs + ",input=12:15", 1) == "110 at BW s1 m0");
  // By default the act that was read; the first stage has none.
  CHECK(MostOf(options, costs, 0) == "122 at RE s0 m0");
  CHECK(MostOf(options, costs, 1) == "110 at BW s1 m0");
  // More than the stash: until RE's end.
  CHECK(MostOf(options, "stash=0,input=50", 0) == "100 at CFW s0 m1");
}

TEST_CASE("what backwards in two halves hold") {
  const CompileOptions options{.scheme = "zb-h1", .shape = {2, 2}};
  const std::string costs = "stash=100,act=10,grad=7,transient=5";
  // The work of the first micro-batch, 60, beside the second one's stash.
  CHECK(MostOf(options, costs + ",work=60", 0) == "227 at RECV_grad s0 m0 from d1");
  CHECK(MostOf(options, costs + ",work=60", 1) == "172 at FW s1 m1");
  CHECK(MostOf(options, costs + ",work=0", 1) == "122 at BW_input s1 m0");
  CHECK(MostOf(options, costs, 1) == "212 at FW s1 m1");  // no work: the stash stays
  // More than what it takes over: while BW_input runs, too.
  CHECK(MostOf(options, costs + ",work=150", 0) == "265 at BW_input s0 m0");
}

TEST_CASE("a stage's output that stays on its device") {
  // One micro-batch through both stages: act(0) is part of stash(1), and grad(0) comes.
  const CompileOptions options{.scheme = "zb-v", .shape = {1, 1, 2}};
  CHECK(MostOf(options, "stash=100:90,act=10,grad=7,work=0", 0) == "197 at BW_input s1 m0");
  // A stage that keeps less than it read holds both while it runs.
  CHECK(MostOf(options, "stash=0,act=10:0,grad=0", 0) == "10 at FW s0 m0");
}

TEST_CASE("each copy of the weights, each version") {
  CHECK(MostOf({.scheme = "chimera", .shape = {2, 2}}, "weights=1000:900", 0) ==
        "1900 at LOAD s0 m0");
  const Program versions = MustCompile({.scheme = "pipedream", .shape = {2, 4}});
  REQUIRE(VersionsOn(versions.lists[0]) == 2);
  CHECK(AliveBytes(versions, *ParseCosts("weights=1000", 2)).Always(0) == 2000);
  CHECK(AliveBytes(versions, *ParseCosts("weights=1000", 2)).Always(1) == 1000);
}

TEST_CASE("numbers without measure are no crash") {
  const CompileOptions options{.scheme = "gpipe", .shape = {1, 64}};
  CHECK(MostOf(options, "stash=1e12,act=1e12,weights=1e12,transient=1e12", 0).find("66") == 0);
}

}  // namespace pp
