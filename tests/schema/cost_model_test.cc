// Costs in text form, and what an instruction takes with them, computed by hand.
#include "schema/semantics/cost_model.h"

#include <catch2/catch.hpp>
#include <string>

#include "schema/semantics/buckets.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Instruction Make(Op op, int stage, int bucket = -1) {
  Instruction i{.op = op, .bucket = static_cast<int16_t>(bucket), .stage = stage};
  i.micro = 0;
  return i;
}

std::string ErrorOf(const std::string& text) {
  const auto costs = ParseCosts(text, 2);
  return costs.ok() ? "right: " + ToText(*costs) : costs.status().message();
}

}  // namespace

TEST_CASE("costs are read, with units and by stage") {
  const auto costs = ParseCosts("f=1:3,b=4,bandwidth=8,in=0.5", 2);
  REQUIRE(costs.ok());
  CHECK(costs->f == PerStage{1, 3});
  CHECK(At(costs->f, 1) == 3);
  CHECK(At(costs->b, 1) == 4);
  CHECK(costs->bandwidth == PerStage{8});
  CHECK(costs->bi.empty());
  CHECK(costs->Unit() == "T");
  const auto seconds = ParseCosts("f=10ms,comm=5us,bandwidth=2GB/s", 2);
  REQUIRE(seconds.ok());
  CHECK(seconds->f == PerStage{0.01});
  CHECK(At(seconds->comm, 0) == Approx(5e-6));
  CHECK(seconds->bandwidth == PerStage{2e9});
  CHECK(seconds->Unit() == "s");
  for (const char* text : {"f=1:3,b=4,bi=1:2,bw=3,r=0.5,fb=6,comm=0.25,latency=1,bandwidth=8",
                           "f=10ms,b=20ms,post=1us:2us,reduce=1ms:2ms,contention=0.5,step=3us",
                           "stash=40MiB:1e12,input=0,work=1,act=2.5KiB,grad=3,weights=4,bandwidth="
                           "1:2"}) {
    const auto read = ParseCosts(text, 2);
    REQUIRE(read.ok());
    const auto again = ParseCosts(ToText(*read), 2);
    REQUIRE(again.ok());
    CHECK(ToText(*again) == ToText(*read));
    for (const CostInfo& row : Costs()) CHECK((*again).*row.member == (*read).*row.member);
    CHECK(again->seconds == read->seconds);
  }
}

TEST_CASE("wrong costs are errors that say what would be right") {
  CHECK_THAT(ErrorOf("g=1"), Catch::StartsWith("--costs: 'g=1' (f, b, r,"));
  CHECK_THAT(ErrorOf("f=1,f=2"), Catch::StartsWith("--costs: 'f=2' ("));
  CHECK_THAT(ErrorOf("f"), Catch::StartsWith("--costs: 'f' ("));
  CHECK_THAT(ErrorOf("f=-1"), Catch::StartsWith("--costs: 'f=-1' (numbers from 0 to 1e+15"));
  CHECK_THAT(ErrorOf("f=1e16"), Catch::StartsWith("--costs: 'f=1e16' (numbers from 0 to 1e+15"));
  CHECK_THAT(ErrorOf("f=nan"), Catch::StartsWith("--costs: 'f=nan' ("));
  CHECK_THAT(ErrorOf("f=1GB/s"), Catch::StartsWith("--costs: 'f=1GB/s' (numbers"));
  CHECK_THAT(ErrorOf("bandwidth=1ms"), Catch::StartsWith("--costs: 'bandwidth=1ms' (numbers"));
  CHECK_THAT(ErrorOf("in=1ms"), Catch::StartsWith("--costs: 'in=1ms' (numbers"));
  CHECK_THAT(ErrorOf("contention=1.5"), Catch::StartsWith("--costs: 'contention=1.5' (numbers"));
  CHECK_THAT(ErrorOf("contention=1ms"), Catch::StartsWith("--costs: 'contention=1ms' (numbers"));
  CHECK(ErrorOf("stash=-1MiB") ==
        "--costs: 'stash=-1MiB' (numbers from 0 to 1e+12, or as in 40MiB)");
  CHECK_THAT(ErrorOf("stash=2TB"), Catch::StartsWith("--costs: 'stash=2TB' (numbers from 0 to"));
  CHECK_THAT(ErrorOf("stash=1ms"), Catch::StartsWith("--costs: 'stash=1ms' (numbers from 0 to"));
  CHECK_THAT(ErrorOf("f=1MiB"), Catch::StartsWith("--costs: 'f=1MiB' (numbers from 0 to"));
  CHECK(ErrorOf("f=1:2:3") == "--costs: 'f=1:2:3' has 3 numbers (1, or 2: one for each stage)");
}

TEST_CASE("bytes are none of the times") {
  const CostModel costs = *ParseCosts("f=1,stash=40MiB:1,weights=3", 2);
  CHECK(costs.Unit() == "T");
  CHECK(ToText(costs) == "f=1,b=2,stash=41943040B:1B,weights=3B");
  CHECK(CountsBytes(costs));
  CHECK(!CountsBytes(*ParseCosts("f=1,in=1", 2)));
  // What is not given is 0, or follows from another one.
  CHECK(BytesOf(costs, Kind::kStash, 0) == 40 << 20);
  CHECK(BytesOf(costs, Kind::kWork, 0) == 40 << 20);
  CHECK(BytesOf(costs, Kind::kInput, 1) == 0);
  CHECK(BytesOf(costs, Kind::kTokens, 0) == 0);
  const CostModel acts = *ParseCosts("act=1.5:8", 2);
  CHECK(BytesOf(acts, Kind::kAct, 0) == 2);  // whole ones
  CHECK(BytesOf(acts, Kind::kGrad, 0) == 2);
  CHECK(BytesOf(acts, Kind::kInput, 0) == 0);
  CHECK(BytesOf(acts, Kind::kInput, 1) == 2);
  const Program program =
      MustCompile({.scheme = "1f1b", .shape = {2, 2}, .job = {.model = PaperModel(2)}});
  CHECK(CostsOf(program, *ParseCosts("act=5")).status().message() ==
        "--costs: 'f=1,b=2,act=5B' has bytes beside a model, which says how many there are (one of "
        "the "
        "two)");
}

TEST_CASE("messages of a bandwidth, without a model") {
  const Program program = MustCompile({.scheme = "1f1b", .shape = {3, 2}});
  const Durations d(*ParseCosts("comm=1,bandwidth=4:8:0,act=40,grad=80", 3), program);
  CHECK(d(Make(Op::kSendAct, 0)) == 11);
  CHECK(d(Make(Op::kRecvGrad, 0)) == 21);
  CHECK(d(Make(Op::kSendAct, 1)) == 6);
  // However slow, a time is a number.
  CHECK(Durations(*ParseCosts("bandwidth=1e-320,act=1e12", 3), program)(Make(Op::kSendAct, 0)) ==
        1e15);
}

TEST_CASE("durations without a model") {
  // Two stages on each device cost half.
  const Program program = MustCompile({.scheme = "interleaved", .shape = {2, 2, 2}});
  const Durations d(*ParseCosts("f=1:2:3:4,b=6,r=8,comm=5,latency=7,step=2,reduce=10", 4), program);
  CHECK(d(Make(Op::kForward, 0)) == 0.5);
  CHECK(d(Make(Op::kForward, 3)) == 2);
  CHECK(d(Make(Op::kForwardDrop, 1)) == 1);
  CHECK(d(Make(Op::kEvaluate, 2)) == 1.5);
  CHECK(d(Make(Op::kBackward, 1)) == 3);
  CHECK(d(Make(Op::kBackwardInput, 1)) == 1.5);  // no bi: half of b
  CHECK(d(Make(Op::kBackwardWeight, 1)) == 1.5);
  CHECK(d(Make(Op::kRecompute, 1)) == 4);
  CHECK(d(Make(Op::kStep, 1)) == 1);
  CHECK(d(Make(Op::kReduceGrad, 1, 0)) == 5);
  CHECK(d(Make(Op::kScatterGrad, 1, 0)) == 2.5);
  CHECK(d(Make(Op::kGatherWeights, 1, 0)) == 2.5);
  CHECK(d(Make(Op::kSendAct, 1)) == 5);  // a message is whole whatever the stages
  CHECK(d(Make(Op::kRecvGrad, 1)) == 5);
  CHECK(d.Latency(Make(Op::kSendAct, 1)) == 7);
  CHECK(d.Lost(Make(Op::kReduceGrad, 1, 0)) == 0);
  const Durations contended(*ParseCosts("reduce=10,comm=5,contention=0.25", 4), program);
  CHECK(contended.Lost(Make(Op::kReduceGrad, 1, 0)) == 1.25);
  CHECK(contended.Lost(Make(Op::kGatherWeights, 1, 0)) == 0.625);
  CHECK(contended.Lost(Make(Op::kBackward, 1)) == 0);
  CHECK(contended.Lost(Make(Op::kSendAct, 1)) == 0);
  const Durations uneven(*ParseCosts("reduce=10,contention=0.25:1:0:0", 4), program);
  CHECK(uneven.Lost(Make(Op::kReduceGrad, 1, 0)) == 5);
  Program posting = program;
  const CostModel post = *ParseCosts("comm=5,post=1:2:3:4", 4);
  CHECK(Durations(post, posting).Lost(Make(Op::kSendGrad, 1)) == 2);  // whole whatever the stages
  CHECK(Durations(post, posting).Lost(Make(Op::kRecvGrad, 1)) == 0);
  posting.p2p = P2p::kBlocking;
  CHECK(Durations(post, posting).Lost(Make(Op::kSendGrad, 1)) == 0);
  CHECK(d(Make(Op::kWait, -1)) == 0);
  CHECK(d.Pair(Make(Op::kForward, 0), Make(Op::kBackward, 1)) == 3.5);  // no fb: the sum
  const Durations same(*ParseCosts("f=1:2:3:4", 4), program);
  CHECK(same(Make(Op::kRecompute, 2)) == 1.5);  // no r: as f
  const Durations pairs(*ParseCosts("fb=1:2:3:4", 4), program);
  CHECK(pairs.Pair(Make(Op::kForward, 3), Make(Op::kBackward, 1)) == 2);  // of the forward's stage
  CHECK(pairs.Pair(Make(Op::kBackward, 1), Make(Op::kForward, 3)) == 2);
}

TEST_CASE("durations with a model") {
  CompileOptions options{
      .scheme = "1f1b", .shape = {2, 2}, .replicas = 2, .job = {.model = PaperModel(2)}};
  options.job.recompute = {OperatorKind::kAttention};
  options.fit.limit.values = {1};
  const Program program = MustCompile(options);
  const Durations d(*ParseCosts("f=2,comm=1,bandwidth=4,reduce=3", 2), program);
  const auto bytes = static_cast<double>(LayoutStage(*program.job, 0).act_bytes);
  CHECK(d(Make(Op::kSendAct, 0)) == Approx(1 + bytes / 4));
  // Attention alone is computed again.
  CHECK(d(Make(Op::kRecompute, 0)) > 0);
  CHECK(d(Make(Op::kRecompute, 0)) < 1);
  // A stage's buckets have its reduction together, in proportion to their bytes; that of the tied
  // embedding is a bucket of the first stage.
  for (int s = 0; s < 2; ++s) {
    const std::vector<Bucket> buckets = BucketsOf(program, s);
    double sum = 0, all = 0;
    for (const Bucket& bucket : buckets) all += static_cast<double>(bucket.bytes);
    for (size_t b = 0; b < buckets.size(); ++b) {
      const double share = d(Make(Op::kReduceGrad, s, static_cast<int>(b)));
      CHECK(share == Approx(3 * static_cast<double>(buckets[b].bytes) / all));
      sum += share;
      if (s == 0 && buckets[b].tied) CHECK(d(Make(Op::kReduceTied, -1)) == Approx(share));
    }
    CHECK(sum == Approx(3));
  }
}

TEST_CASE("costs by the model's work: T is the mean forward") {
  const Program program =
      MustCompile({.scheme = "1f1b", .shape = {2, 2}, .job = {.model = PaperModel(4)}});
  const CostModel costs = CostsByWork(*program.job);
  REQUIRE(costs.f.size() == 2);
  CHECK((costs.f[0] + costs.f[1]) / 2 == Approx(1));
  CHECK(costs.f[1] > costs.f[0]);  // the head
  for (int s = 0; s < 2; ++s) CHECK(costs.b[s] == Approx(costs.bi[s] + costs.bw[s]));
  CHECK(CostsOf(program)->f == costs.f);
  CHECK(CostsOf(program, *ParseCosts("f=5"))->f == PerStage{5});
}

}  // namespace pp
