// Plans without a model whose stages share a tensor, and that have an evaluation: every scheme with
// both is right, comes back from text and file and takes no more time; what is missing or named
// wrongly is found.
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <utility>

#include "compiler/compile.h"
#include "compiler/scheme.h"
#include "compiler/simulate.h"
#include "schema/format/file.h"
#include "schema/nccl/prove.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

using Stages = std::vector<int32_t>;

CompileOptions Options(const std::string& tied, const std::string& scheme = "1f1b",
                       Shape shape = {4, 4}) {
  return {.scheme = scheme, .shape = shape, .tied = tied, .evaluates = true};
}

std::string ErrorOf(const Program& program) {
  const Status status = Verify(program, Depth::kPlan);
  return status.ok() ? "right" : status.message();
}

bool IsTiedSum(const Instruction& i) {
  return i.op == Op::kReduceTied || (i.op == Op::kWait && i.value == Kind::kTied);
}

// Of the lists alone, the memory aside.
std::string BodiesOf(Program program) {
  program.tied.clear();
  for (DeviceList& list : program.lists) {
    std::erase_if(list.body, IsTiedSum);
  }
  DropRoutines(&program);
  return Print(program);
}

double MakespanOf(const Program& program) {
  std::vector<WaitsFor> waits_for;
  const Status status = Verify(program, Depth::kPlan, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  const auto prediction = Simulate(program, waits_for, CostModel());
  REQUIRE(prediction.ok());
  return prediction->makespan;
}

// Those that take part in the sum do so once.
void CheckMembers(const Program& program) {
  for (int d = 0; d < program.devices; ++d) {
    const Stages held = program.StagesOf(d);
    const bool holds = std::any_of(held.begin(), held.end(), [&](int s) {
      return std::find(program.tied.begin(), program.tied.end(), s) != program.tied.end();
    });
    const auto& body = program.lists[d].body;
    CHECK(std::count_if(body.begin(), body.end(), IsTiedSum) == (holds ? 2 : 0));
  }
}

void CheckRoundTrips(const Program& program) {
  auto parsed = Parse(Print(program), "text");
  REQUIRE(parsed.status().message() == "");
  CHECK(parsed->tied == program.tied);
  REQUIRE(Lower(*parsed, Form::kLists, {}).ok());
  CHECK(*parsed == program);
  const auto decoded = Decode(*Encode(program), "file");
  REQUIRE(decoded.status().message() == "");
  CHECK(*decoded == program);
}

}  // namespace

TEST_CASE("every scheme takes tied stages and an evaluation") {
  std::set<std::string_view> seen;
  for (const Scheme& scheme : Schemes())
    for (const int devices : {1, 2, 4})
      for (const int replicas : {1, 2})
        for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
          const bool flush = !scheme.name.starts_with("pipedream");
          CompileOptions options = Options(flush ? "0,S-1" : "", std::string(scheme.name));
          options.shape = {devices, 2 * devices, 0};
          options.p2p = p2p;
          options.replicas = replicas;
          options.zero = p2p == P2p::kBlocking ? 1 : 0;
          options.clip = flush && devices != 4;
          INFO(scheme.name << " D " << devices << " dp " << replicas << " p2p "
                           << static_cast<int>(p2p));
          const auto placed = BuildPlacement(options.scheme, options.shape);
          if (!placed.ok()) continue;
          if (placed->stages == 1) options.tied.clear();
          const Program program = MustCompile(options);
          CHECK(program.tied == (options.tied.empty() ? Stages{} : Stages{0, program.stages - 1}));
          CheckMembers(program);
          REQUIRE(HasEvaluation(program));
          CheckRoundTrips(program);
          options.evaluates = false;
          options.tied.clear();
          const Program plain = MustCompile(options);
          CHECK(!HasEvaluation(plain));
          // The tied tensor of a copy that shards its weights is a bucket of its own. Without a
          // norm tied stages step after their sum.
          if (options.clip.value() && (plain.Copies() == 1 || options.zero == 0))
            CHECK(BodiesOf(program) == BodiesOf(plain));
          CHECK(MakespanOf(program) == MakespanOf(plain));
          seen.insert(scheme.name);
        }
  CHECK(seen.size() == Schemes().size());
}

TEST_CASE("any set of stages may share a tensor") {
  const std::map<std::string, Stages> sets = {
      {"0,1", {0, 1}},          {"1,S-1", {1, 3}}, {"3,0", {0, 3}},
      {"S-3,S-2,0", {0, 1, 2}}, {"0,2", {0, 2}},   {"S-1,S-2,S-3,S-4", {0, 1, 2, 3}},
      {"00,S-0000001", {0, 3}}};
  for (const char* scheme : {"1f1b", "interleaved", "zb-v", "chimera"})
    for (const auto& [text, stages] : sets)
      for (const int replicas : {1, 2}) {
        INFO(scheme << ' ' << text << " dp " << replicas);
        const bool looped = std::string(scheme) == "interleaved" || std::string(scheme) == "zb-v";
        CompileOptions options = Options(text, scheme, {looped ? 2 : 4, 4, 0});
        options.replicas = replicas;
        const Program program = MustCompile(options);
        CHECK(program.tied == stages);
        CheckMembers(program);
        CheckRoundTrips(program);
      }
}

TEST_CASE("a sum of tied stages that a device lacks, or has though it holds none, is found") {
  const Program plan = MustCompile(Options("0,2"));
  REQUIRE(ErrorOf(plan) == "right");
  for (int d = 0; d < plan.devices; ++d) {
    INFO("device " << d);
    Program broken = plan;
    std::vector<Instruction>& list = broken.lists[d].body;
    if (d % 2 == 0) {
      std::erase_if(list, IsTiedSum);
      CHECK(ErrorOf(broken) == "device " + std::to_string(d) + ", 'NORM_grad s" +
                                   std::to_string(d) + "' (instruction " +
                                   std::to_string(list.size() - 4 - (d > 0 ? 1 : 0)) +
                                   "): before 'WAIT tied' of s" + std::to_string(d));
    } else {
      list.insert(list.begin(), {.op = Op::kReduceTied});
      CHECK(ErrorOf(broken) == "device " + std::to_string(d) +
                                   ", 'REDUCE_tied' (instruction 0): device " + std::to_string(d) +
                                   " holds no tied stage");
    }
  }
  // The lists of two stages, named as any others.
  for (const Stages& other : {Stages{}, {0, 1}, {0, 3}, {1, 2}, {1, 3}, {2, 3}, {0, 1, 2}}) {
    Program named = plan;
    named.tied = other;
    CHECK(ErrorOf(named) != "right");
  }
}

TEST_CASE("what cannot be tied is refused in a line") {
  const std::string right = "' (two or more of the stages 0 to 3, each once; S-1 is the last)";
  for (const char* text : {"0",
                           "S-1",
                           "0,0",
                           "0,S-4",
                           "9,10",
                           "0,4",
                           "S",
                           "a",
                           "0,S",
                           "0,s-1",
                           "0,S-0",
                           "0,S-5",
                           "0,S--1",
                           "0,-1",
                           "-1,0",
                           "0,,3",
                           "0,3,",
                           ",",
                           "0 3",
                           "0,0x3",
                           "0,3.0",
                           "0,1e0",
                           "0,99999999999",
                           "0,S-99999999999",
                           "0,S-2147483648",
                           "2147483647,0",
                           "0,3,1,S-1"}) {
    const Status status = Compile(Options(text)).status();
    CHECK(status.message() == "--tied: '" + std::string(text) + right);
    CHECK(status.code() == Code::kInvalid);
  }
  CHECK(Compile(Options("0,S-1", "1f1b", {1, 1})).status().message() ==
        "--tied: '0,S-1' (two or more of the stages 0 to 0, each once; S-1 is the last)");
  CHECK(Compile(Options("0,S-1", "pipedream")).status().message() ==
        "--tied: tied stages need a flush, pipedream has none (another scheme)");
}

TEST_CASE("a model says itself which stages are tied") {
  for (const bool tied : {true, false}) {
    CompileOptions options = Options("");
    options.job.model = SmallModel("gpt2", tied, /*layers=*/4);
    const Program plain = MustCompile(options);
    CHECK(plain.tied.empty());
    CHECK(plain.TiedStages() == (tied ? Stages{0, 3} : Stages{}));
    options.tied = "1,2";
    CHECK(Compile(options).status().message() == "--tied: 1,2, but the model ties " +
                                                     std::string(tied ? "0,3" : "no stages") +
                                                     " (with --model no --tied)");
    options.tied = "0,S-1";
    if (tied) CHECK(MustCompile(options) == plain);
    // Of a text that says both it is the text that is wrong.
    std::string text = Print(plain);
    text.insert(text.find("model "), "tied 0 3\n");
    CHECK(Parse(text, "text").status().message() ==
          "text: line 2: 'tied 0 3' beside a model (which says it itself)");
    Program both = plain;
    both.tied = {0, 3};
    CHECK(Decode(*Encode(both), "x.plan").status().message() ==
          "x.plan: 'tied 0 3' beside a model (which says it itself)");
  }
}

TEST_CASE("texts and files whose tied stages make no sense") {
  const Program plan = MustCompile(Options("0,3"));
  const std::string text = Print(plan), line = "tied 0 3\n";
  const size_t at = text.find(line);
  REQUIRE(at != std::string::npos);
  const auto error = [&](const std::string& other) {
    std::string changed = text;
    return Parse(changed.replace(at, line.size(), other + "\n"), "text").status().message();
  };
  const std::string range = " (two or more of the stages 0 to 3, ascending)";
  for (const char* wrong : {"tied 3", "tied 3 0", "tied 0 0", "tied 0 4"})
    CHECK(error(wrong) == "text: line 2: '" + std::string(wrong) + "'" + range);
  CHECK(error("tied 0 S-1") == "text: line 2: tied: 'S-1' (a whole number from 0 to 2147483647)");
  CHECK(error("tied") == "text: line 2: tied: '' (numbers separated by commas)");
  for (const Stages& wrong : {Stages{3}, {3, 0}, {0, 0}, {0, 4}, {-1, 0}}) {
    Program changed = plan;
    changed.tied = wrong;
    const std::string message = Decode(*Encode(changed), "x.plan").status().message();
    CHECK_THAT(message, Catch::StartsWith("x.plan: 'tied ") && Catch::EndsWith(range));
  }
}

// Lists that say so keep their tied stages and their evaluation, whatever they lack.
TEST_CASE("an import takes what lists say, or the options") {
  CompileOptions plain;
  const Program plan = MustCompile(Options("0,2"));
  const auto import = [](const std::string& text, const CompileOptions& options) {
    auto program = Parse(text, "text");
    INFO(program.status().message());
    REQUIRE(program.ok());
    return CompileLists(std::move(*program), {"text"}, options);
  };
  CHECK(*import(Print(plan), plain) == plan);
  // Other stages than the lists' sum is for.
  CHECK_THAT(import(Print(plan), {.tied = "0,3"}).status().message(),
             Catch::StartsWith("text: device 2, 'REDUCE_tied' ") &&
                 Catch::EndsWith("device 2 holds no tied stage"));
  const Program bare = MustCompile({.scheme = "1f1b", .shape = {4, 4}});
  CHECK(*import(Print(bare), {.evaluates = true}) == [&] {
    Program with = plan;  // but for the sum
    with.tied.clear();
    for (DeviceList& list : with.lists) std::erase_if(list.body, IsTiedSum);
    return with;
  }());
  CHECK(import(Print(bare), {.tied = "0,2"}).status().message().find("before 'WAIT tied' of s0") !=
        std::string::npos);
  // Compute instructions alone, with and without what is made of them.
  const auto compute_alone = [](Program program) {
    for (DeviceList& list : program.lists)
      ForEachList(list, [](std::vector<Instruction>& one) {
        std::erase_if(one, [](const Instruction& i) {
          return !Info(i.op).part && i.op != Op::kLoad && i.op != Op::kEvaluate;
        });
      });
    return Print(program);
  };
  CHECK(*import(compute_alone(bare), {.tied = "0,S-2", .evaluates = true}) == plan);
  CHECK(*import(compute_alone(plan), plain) == plan);
}

// With costs that do not say how large the tensor is, it is taken as half of its first stage.
TEST_CASE("a tied sum takes half of what a stage's reduction costs") {
  CompileOptions options = Options("1,3");
  options.replicas = 2;
  const Program program = MustCompile(options);
  const Durations d(*ParseCosts("reduce=2:4:6:8", 4), program);
  const auto bucket = [&](int stage) {
    return d({.op = Op::kReduceGrad, .bucket = 0, .stage = stage});
  };
  CHECK(bucket(0) == 2);
  CHECK(bucket(1) == 2);
  CHECK(bucket(2) == 6);
  CHECK(bucket(3) == 4);
  CHECK(d({.op = Op::kReduceTied}) == 2);
}

TEST_CASE("the ranks of tied stages are connected") {
  const auto peers = [](const std::string& tied) {
    CompileOptions options = Options(tied);
    options.clip = false;
    const auto needs = nccl::Prove(MustCompile(options), {});
    REQUIRE(needs.ok());
    return needs->peers;
  };
  CHECK(peers("1,2") == peers("") + 1);
  CHECK(peers("0,1,2") == peers("") + 2);
}

}  // namespace pp
