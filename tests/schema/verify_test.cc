// The verifier on plans that are almost right.
#include "schema/proof/verify.h"

#include <catch2/catch.hpp>

#include "compiler/compile.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Program TinyPlan(P2p p2p, std::vector<OperatorKind> recompute = {}, Dtype dtype = Dtype::kFp32) {
  CompileOptions options{
      .scheme = "1f1b", .shape = {2, 3, 1}, .p2p = p2p, .job = {.model = PaperModel(2)}};
  if (!recompute.empty()) options.fit.limit.values = {2};  // some FW, some CFW
  options.job.recompute = std::move(recompute);
  options.job.dtype = dtype;
  return MustCompile(options);
}

ModelConfig UntiedModel(int layers) {
  ModelConfig model = PaperModel(layers);
  model.tied = false;
  return model;
}

std::string ErrorOf(const Program& program) {
  const Status status = Verify(program, Depth::kPlan);
  return status.ok() ? "right" : status.message();
}

}  // namespace

TEST_CASE("a plan without any one of its instructions is refused") {
  for (P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
    const Program plan = TinyPlan(p2p);
    REQUIRE(ErrorOf(plan) == "right");
    for (size_t d = 0; d < plan.lists.size(); ++d)
      for (size_t i = 0; i < plan.lists[d].body.size(); ++i) {
        Program broken = plan;
        broken.lists[d].body.erase(broken.lists[d].body.begin() + i);
        INFO("without device " << d << " '" << ToText(plan.lists[d].body[i]) << "'");
        CHECK(ErrorOf(broken) != "right");
      }
  }
}

TEST_CASE("a plan with any one of its instructions twice is refused") {
  const Program plan = TinyPlan(P2p::kAsync);
  for (size_t d = 0; d < plan.lists.size(); ++d)
    for (size_t i = 0; i < plan.lists[d].body.size(); ++i) {
      Program broken = plan;
      broken.lists[d].body.insert(broken.lists[d].body.begin() + i, plan.lists[d].body[i]);
      INFO("device " << d << " '" << ToText(plan.lists[d].body[i]) << "' twice");
      CHECK(ErrorOf(broken) != "right");
    }
}

TEST_CASE("two values never share bytes, nor lie outside the arena") {
  const Program plan =
      GENERATE(TinyPlan(P2p::kAsync, {}), TinyPlan(P2p::kAsync, {OperatorKind::kAttention}));
  for (size_t d = 0; d < plan.lists.size(); ++d)
    for (size_t i = 0; i < plan.lists[d].body.size(); ++i)
      for (int slot : {0, 1, 2}) {
        if (plan.lists[d].body[i].offset[slot] < 0) continue;
        INFO("device " << d << " '" << ToText(plan.lists[d].body[i]) << "' slot " << slot);
        // On the weights, past the end, nowhere.
        for (int64_t offset : {int64_t{0}, plan.lists[d].arena_bytes, int64_t{-1}, INT64_MAX}) {
          Program broken = plan;
          broken.lists[d].body[i].offset[slot] = offset;
          CHECK(ErrorOf(broken) != "right");
        }
      }
}

TEST_CASE("the message names device, instruction and value") {
  Program plan = TinyPlan(P2p::kAsync);
  auto& list = plan.lists[1].body;
  const auto wait = std::find_if(list.begin(), list.end(),
                                 [](const Instruction& i) { return i.op == Op::kWait; });
  list.erase(wait);
  CHECK(ErrorOf(plan).starts_with("device 1, 'FW s1 m0' (instruction "));
  CHECK(ErrorOf(plan).ends_with("reads act s0 m0 without a WAIT for it"));
}

// The runtime finds a region by its name and believes its size: a second one, or one of another
// size, would be memory that nobody proved.
TEST_CASE("a plan claims exactly the regions that its devices need") {
  const Program plan = GENERATE(
      TinyPlan(P2p::kAsync), TinyPlan(P2p::kAsync, {}, Dtype::kFp16),
      MustCompile({.scheme = "pipedream", .shape = {2, 2}, .job = {.model = UntiedModel(2)}}),
      MustCompile(
          {.scheme = "chimera", .shape = {2, 2}, .zero = 1, .job = {.model = PaperModel(2)}}));
  REQUIRE(ErrorOf(plan) == "right");
  // With another region in an arena that has room for it.
  const auto error = [&](size_t d, size_t at, const Region& region, bool in_addition) {
    Program broken = plan;
    DeviceList& list = broken.lists[d];
    if (!in_addition) list.regions.erase(list.regions.begin() + at);
    Region& added = *list.regions.insert(list.regions.begin() + at, region);
    added.offset = (list.arena_bytes + kAlign - 1) / kAlign * kAlign;
    list.arena_bytes = added.offset + added.bytes;
    return ErrorOf(broken);
  };
  for (size_t d = 0; d < plan.lists.size(); ++d)
    for (size_t r = 0; r < plan.lists[d].regions.size(); ++r) {
      const Region right = plan.lists[d].regions[r];
      INFO("device " << d << ", region " << r << ": " << Info(right.kind).text);
      CHECK(error(d, r, right, /*in_addition=*/false) == "right");  // wherever it is
      std::vector<Region> wrong(7, right);
      wrong[0].stage = right.stage < 0 ? 0 : -1;
      wrong[1].pipe = right.pipe < 0 ? 0 : -1;
      wrong[2].kind = Kind::kAct;
      wrong[3].bytes = 0;
      wrong[4].bytes -= kAlign;
      wrong[5].bytes += kAlign;
      for (const Region& region : wrong) {
        // The last one differs only in being the second.
        CHECK_THAT(error(d, r, region, /*in_addition=*/true),
                   Catch::StartsWith("device " + std::to_string(d) + ": "));
        if (&region == &wrong.back()) continue;
        CHECK_THAT(error(d, r, region, /*in_addition=*/false),
                   Catch::StartsWith("device " + std::to_string(d) + ": "));
      }
    }
}

TEST_CASE("the message names device and region") {
  const Program plan =
      MustCompile({.scheme = "chimera", .shape = {2, 2}, .job = {.model = PaperModel(2)}});
  const auto error = [&](auto change) {
    Program broken = plan;
    change(broken.lists[1]);
    return ErrorOf(broken);
  };
  REQUIRE(plan.lists[1].regions[0].kind == Kind::kWeights);
  CHECK(error([](DeviceList& list) { list.regions[0].bytes -= 64; }) ==
        "device 1: weights s0 of pipe 1 has 4384 bytes (4448)");
  CHECK(error([](DeviceList& list) { list.regions.erase(list.regions.begin()); }) ==
        "device 1: no region for weights s0 of pipe 1 (4448 bytes)");
  CHECK(error([](DeviceList& list) {
          const int64_t end = (list.arena_bytes + kAlign - 1) / kAlign * kAlign;
          list.regions.push_back({Kind::kScratch, 0, -1, end, 64});
          list.arena_bytes = end + 64;
        }) ==
        "device 1: a region of 64 bytes for scratch s0 (the device needs none, or no second)");
  CHECK_THAT(error([](DeviceList& list) {
               list.regions[0].offset = list.arena_bytes + 4;
               list.arena_bytes += 2 * list.regions[0].bytes;
             }),
             Catch::StartsWith("device 1: weights s0 of pipe 1 at byte ") &&
                 Catch::EndsWith(" (multiples of 64)"));
}

// Bytes of all versions together that overflow 64 bits.
TEST_CASE("weights of more versions than fit an arena are refused") {
  Program plan =
      MustCompile({.scheme = "pipedream", .shape = {2, 2}, .job = {.model = UntiedModel(2)}});
  plan.job->model.hidden_size = 1 << 18;
  plan.job->model.layers = 1800;
  plan.job->layers_per_stage = {1799, 1};
  REQUIRE(CheckJob(*plan.job).message() == "");
  for (Instruction& i : plan.lists[0].body)
    if (i.version > 0) i.version = INT16_MAX - 1;
  CHECK_THAT(ErrorOf(plan), Catch::StartsWith("device 0: "));
}

// Without the scale's bytes, and without the norm that says when it is halved.
TEST_CASE("a scaled loss needs its place and a norm") {
  Program plan = TinyPlan(P2p::kAsync, {}, Dtype::kFp16);
  CHECK(ErrorOf(plan) == "right");
  for (Region& region : plan.lists[1].regions)
    if (region.kind == Kind::kNorm) region.bytes -= kLossScaleBytes;
  CHECK_THAT(ErrorOf(plan), Catch::Contains(": norm has "));
  plan.clip = false;
  CHECK(ErrorOf(plan) == "activations of fp16 without a gradient norm (clip exact)");
}

TEST_CASE("a stage may not step before its last backward, nor before the norm") {
  const std::string text = Print(TinyPlan(P2p::kAsync));
  auto moved = [&](const std::string& line, const std::string& before) {
    std::string changed = text;
    const size_t from = changed.find("  " + line + "\n", changed.find("device 1"));
    REQUIRE(from != std::string::npos);
    changed.erase(from, line.size() + 3);
    const size_t to = changed.find("  " + before + "\n", changed.find("device 1"));
    REQUIRE(to != std::string::npos);
    changed.insert(to, "  " + line + "\n");
    const auto program = Parse(changed, "text");
    REQUIRE(program.ok());
    return Verify(*program, Depth::kLists).message();
  };
  CHECK_THAT(moved("STEP      s1", "BW        s1 m2"),
             Catch::Contains("wgrad s1 has the parts of 2 micro-batches out of 3"));
  CHECK_THAT(moved("STEP      s1", "WAIT      norm"), Catch::Contains("STEP before 'WAIT norm'"));
  CHECK_THAT(moved("NORM_grad s1", "WAIT      tied"), Catch::Contains("is being reduced"));
}

// Each device waits for the end of its send before it offers the buffer that the other one's send
// needs: what the plan still keeps leaves no other. Without buffers in the plan this order is fine.
TEST_CASE("finite buffers make deadlocks, and they are found") {
  auto program = Parse(R"(
program exchange stages 2 microbatches 2
device 0 holds s0
  LOAD s0 m0
  FW s0 m0
  SEND_act s0 m0 to d1
  LOAD s0 m1
  FW s0 m1
  SEND_act s0 m1 to d1
  WAIT act s0 m1 sent
  WAIT act s0 m0 sent
  RECV_grad s0 m0 from d1
  WAIT grad s0 m0
  BW s0 m0
  RECV_grad s0 m1 from d1
  WAIT grad s0 m1
  BW s0 m1
  NORM_grad s0
  REDUCE_norm
  WAIT norm
  STEP s0
device 1 holds s1
  RECV_act s0 m0 from d0
  LOAD s1 m0
  WAIT act s0 m0
  FW s1 m0
  BW_input s1 m0
  SEND_grad s0 m0 to d0
  WAIT grad s0 m0 sent
  RECV_act s0 m1 from d0
  BW_weight s1 m0
  LOAD s1 m1
  WAIT act s0 m1
  FW s1 m1
  BW_input s1 m1
  SEND_grad s0 m1 to d0
  BW_weight s1 m1
  WAIT grad s0 m1 sent
  NORM_grad s1
  REDUCE_norm
  WAIT norm
  STEP s1
)",
                       "exchange");
  INFO(program.status().message());
  REQUIRE(program.ok());
  CHECK(Verify(*program, Depth::kLists).ok());
  const Status status = Lower(*program, Form::kLists, {});
  CHECK(status.message() ==
        "after plan-memory: deadlock: device 0 stops at 'WAIT act s0 m1 sent'; "
        "device 1 stops at 'WAIT grad s0 m0 sent' (device 0 'WAIT act s0 m1 sent' (instruction 6) "
        "waits for device 0 'SEND_act s0 m1 to d1' (instruction 5), which waits to be matched by "
        "device 1 "
        "'RECV_act s0 m1 from d0' (instruction 7), which needs device 1 'WAIT grad s0 m0 sent' "
        "(instruction 6), which waits for device 1 'SEND_grad s0 m0 to d0' (instruction 5), which "
        "waits to be matched by device 0 'RECV_grad s0 m0 from d1' (instruction 8), which needs "
        "the first)");
}

TEST_CASE("all members of a group start their collectives in one order") {
  for (const char* clip : {"exact", "off"}) {
    const auto plan = Compile({.scheme = "chimera",
                               .shape = {4, 4},
                               .zero = 1,
                               .clip = std::string(clip) == "exact",
                               .job = {.model = PaperModel(4)}});
    INFO(plan.status().message());
    REQUIRE(plan.ok());
    REQUIRE(ErrorOf(*plan) == "right");
    // Any two of a device that another one also has.
    int swaps = 0;
    for (size_t d = 0; d < plan->lists.size(); ++d) {
      std::vector<size_t> at;
      const auto& list = plan->lists[d].body;
      for (size_t i = 0; i < list.size(); ++i)
        if (list[i].op == Op::kScatterGrad || list[i].op == Op::kReduceTied) at.push_back(i);
      for (size_t k = 0; k + 1 < at.size(); ++k) {
        Program broken = *plan;
        auto& changed = broken.lists[d].body;
        // After all backwards, so that only the order is wrong.
        const auto last = std::find_if(changed.rbegin(), changed.rend(), [](const Instruction& i) {
                            return i.op == Op::kBackward;
                          }).base();
        if (changed.begin() + at[k + 1] < last) continue;
        std::rotate(changed.begin() + at[k], changed.begin() + at[k] + 1,
                    changed.begin() + at[k + 1] + 1);
        CHECK_THAT(ErrorOf(broken), Catch::StartsWith("collectives ") &&
                                        Catch::Contains("the other way round (all members of"));
        ++swaps;
      }
    }
    CHECK(swaps > 0);
  }
}

TEST_CASE("blocking sends deadlock where both ends send first") {
  std::string text = Print(TinyPlan(P2p::kBlocking));
  const std::string first = "  SEND_act  s0 m1 to d1\n", second = "  RECV_grad s0 m0 from d1\n";
  const size_t at = text.find(first + second);
  REQUIRE(at != std::string::npos);
  text.replace(at, first.size() + second.size(), second + first);
  const auto program = Parse(text, "text");
  REQUIRE(program.ok());
  CHECK_THAT(Verify(*program, Depth::kLists).message(),
             Catch::StartsWith("deadlock: device 0 stops at"));
}

}  // namespace pp
