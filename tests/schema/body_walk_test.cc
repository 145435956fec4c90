// What the bodies of repeated programs wait for: by hand for small ones, and by a second method for
// all kinds.
#include "schema/proof/body_walk.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "schema/play/execute.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Program PlanOf(CompileOptions options) {
  options.job.model = PaperModel(4);
  options.job.model.tied = false;  // PipeDream, too, takes it
  return MustCompile(options);
}

BodyWalk MustWalk(const Program& program, int device) {
  BodyWalk walk;
  REQUIRE(WalkBody(program, device, &walk).message() == "");
  REQUIRE(walk.waits_for.size() == program.lists[device].body.size());
  return walk;
}

// What `text` waits for: "the same body: FW s0 m0", "the body before: ..." or "nothing".
std::string WaitOf(const Program& program, int device, const std::string& text) {
  const std::vector<Instruction>& body = program.lists[device].body;
  const auto found = std::find_if(body.begin(), body.end(),
                                  [&](const Instruction& i) { return ToText(i) == text; });
  INFO(text);
  REQUIRE(found != body.end());
  const Dependence wait = MustWalk(program, device).waits_for[found - body.begin()];
  if (wait.index < 0) return "nothing";
  return (wait.body == 0 ? "the same body: " : "the body before: ") + ToText(body[wait.index]);
}

std::vector<CompileOptions> AllKinds() {
  return {{.scheme = "1f1b", .shape = {2, 2}},
          {.scheme = "1f1b", .shape = {4, 6}, .clip = false},
          {.scheme = "1f1b", .shape = {4, 6}, .p2p = P2p::kBlocking},
          {.scheme = "zb-h2", .shape = {2, 4}, .replicas = 2, .zero = 1, .clip = false},
          {.scheme = "interleaved", .shape = {2, 4, 2}, .passes = "mario"},
          {.scheme = "chimera", .shape = {4, 4}, .clip = false},
          {.scheme = "pipedream", .shape = {2, 2}},
          {.scheme = "pipedream", .shape = {4, 5}},
          {.scheme = "pipedream", .shape = {4, 5}, .p2p = P2p::kBlocking},
          {.scheme = "pipedream-2bw", .shape = {2, 4}, .replicas = 2, .zero = 1}};
}

}  // namespace

TEST_CASE(
    "1f1b, async: a receive waits for the last use of its bytes, perhaps in the body before") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {2, 2}});
  auto wait = [&](const char* text) { return WaitOf(program, 0, text); };
  CHECK(wait("FW s0 m0") == "nothing");
  CHECK(wait("SEND_act s0 m0 to d1") == "the same body: FW s0 m0");
  CHECK(wait("WAIT act s0 m0 sent") == "the same body: SEND_act s0 m0 to d1");
  // Each takes the bytes that have been free longest.
  CHECK(wait("RECV_grad s0 m0 from d1") == "the body before: BW s0 m0");
  CHECK(wait("RECV_grad s0 m1 from d1") == "the same body: WAIT act s0 m0 sent");
  CHECK(wait("WAIT grad s0 m1") == "the same body: RECV_grad s0 m1 from d1");
  CHECK(wait("REDUCE_norm") == "the same body: NORM_grad s0");
  CHECK(wait("WAIT norm") == "the same body: REDUCE_norm");
  // act m1 arrives while m0's stash still holds its act.
  CHECK(WaitOf(program, 1, "RECV_act s0 m0 from d0") == "the body before: WAIT grad s0 m1 sent");
  CHECK(WaitOf(program, 1, "RECV_act s0 m1 from d0") == "the body before: BW s1 m1");
}

TEST_CASE("1f1b, blocking: messages stand in the compute lane") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {2, 2}, .p2p = P2p::kBlocking});
  CHECK(WaitOf(program, 0, "SEND_act s0 m1 to d1") == "the same body: FW s0 m1");
  CHECK(WaitOf(program, 1, "SEND_grad s0 m0 to d0") == "the same body: BW s1 m0");
  CHECK(WaitOf(program, 1, "RECV_act s0 m0 from d0").starts_with("the body before: "));
}

TEST_CASE("pipedream: what a body begins is over in the next one") {
  const Program program = PlanOf({.scheme = "pipedream", .shape = {2, 2}});
  auto wait = [&](const char* text) { return WaitOf(program, 0, text); };
  CHECK(wait("BW s0 m0 v1") == "nothing");
  CHECK(wait("SEND_act s0 m2 to d1") == "the same body: FW s0 m2 v0");
  CHECK(wait("RECV_grad s0 m0 from d1") == "the body before: WAIT act s0 m2 sent");
  CHECK(wait("RECV_grad s0 m1 from d1") == "the same body: WAIT act s0 m1 sent");
  // The stash of m2 is carried over: the next body frees it as that of m0.
  const BodyWalk walk = MustWalk(program, 0);
  const auto& body = program.lists[0].body;
  const auto at = [&](const char* text) {
    return std::find_if(body.begin(), body.end(),
                        [&](const Instruction& i) { return ToText(i) == text; }) -
           body.begin();
  };
  CHECK(std::any_of(walk.freed.begin(), walk.freed.end(), [&](const Freed& freed) {
    return freed.index == at("BW s0 m0 v1") && freed.offset == body[at("FW s0 m2 v0")].offset[1];
  }));
}

TEST_CASE("waits name their message, receives the last use of their bytes") {
  for (const CompileOptions& options : AllKinds()) {
    const Program program = PlanOf(options);
    const ValueBytes bytes(program);
    for (int d = 0; d < program.devices; ++d) {
      const std::vector<Instruction>& body = program.lists[d].body;
      const BodyWalk walk = MustWalk(program, d);
      CHECK(std::is_sorted(walk.freed.begin(), walk.freed.end(),
                           [](const Freed& a, const Freed& b) { return a.index < b.index; }));
      for (int i = 0; i < static_cast<int>(body.size()); ++i) {
        INFO(options.scheme << " device " << d << " '" << ToText(body[i]) << "'");
        const Dependence wait = walk.waits_for[i];
        if (body[i].op == Op::kWait) {
          REQUIRE(wait.index >= 0);
          const Instruction& other = body[wait.index];
          CHECK(other.stage == body[i].stage);
          CHECK(other.bucket == body[i].bucket);
          CHECK(other.micro ==
                (wait.body == 0 ? body[i].micro : body[i].micro + program.microbatches));
        }
        if (Info(body[i].op).lane != Lane::kRecv) continue;
        // The last one before it, cyclically, that becomes free on its bytes.
        const int64_t begin = body[i].offset[0];
        const Kind kind = body[i].op == Op::kRecvAct ? Kind::kAct : Kind::kGrad;
        const int64_t end = begin + bytes({kind, body[i].stage, body[i].micro});
        Dependence expected;
        for (int of_body : {-1, 0})
          for (const Freed& freed : walk.freed)
            if (freed.offset < end && freed.offset + freed.bytes > begin &&
                (of_body == 0) == (freed.index < i))
              expected = {of_body, freed.index};
        CHECK(wait == expected);
      }
    }
  }
}

// As verify.h argues: a plain body that finishes can be repeated.
TEST_CASE("three plain bodies in a row get to their end") {
  for (const CompileOptions& options : AllKinds()) {
    const Program program = PlanOf(options);
    if (program.overlaps) continue;
    INFO(options.scheme);
    constexpr int kBodies = 3;
    const Program unrolled = Unroll(program, kBodies);
    CHECK(unrolled.microbatches == kBodies * program.microbatches);
    const ValueBytes bytes(program);
    const Placement placement(program);
    std::vector<WaitsFor> waits_for(program.devices);
    for (int d = 0; d < program.devices; ++d) {
      const auto& list = unrolled.lists[d].body;
      CHECK(list.size() == kBodies * program.lists[d].body.size());
      MemoryCheck memory(unrolled, d, list);
      const WalkArgs args{.depth = Depth::kPlan,
                          .placement = &placement,
                          .memory = &memory,
                          .bytes = &bytes,
                          .waits_for = &waits_for[d],
                          .bodies = kBodies};
      CHECK(WalkList(unrolled, d, list, args).message() == "");
      // Not one long body: each has its own parts and its own STEP.
      if (d == 0) {
        WalkArgs one = args;
        one.bodies = 1;
        MemoryCheck again(unrolled, d, list);
        one.memory = &again;
        one.waits_for = nullptr;
        CHECK_THAT(WalkList(unrolled, d, list, one).message(),
                   Catch::Contains("micro-batches out of"));
      }
    }
    CHECK(Execute(unrolled, waits_for, CostModel(), nullptr).message() == "");
  }
}

TEST_CASE("a body that is wrong is refused") {
  Program program = PlanOf({.scheme = "1f1b", .shape = {2, 2}});
  program.lists[0].body.pop_back();
  BodyWalk walk;
  CHECK_THAT(WalkBody(program, 0, &walk).message(), Catch::Contains("no STEP s0"));
}

TEST_CASE("the head of a program is all but its lists and routines") {
  const Program program = PlanOf({.scheme = "chimera",
                                  .shape = {4, 4},
                                  .passes = "",
                                  .replicas = 2,
                                  .zero = 1,
                                  .clip = false});
  Program head = program.Head();
  CHECK(head.lists.empty());
  CHECK(head.routines.empty());
  head.lists = program.lists;
  head.routines = program.routines;
  CHECK(head == program);
}

}  // namespace pp
