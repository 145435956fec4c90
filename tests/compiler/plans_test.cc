// Plans of every kind: they come back from text and file, and if one place is broken the verifier
// always refuses.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>

#include "compiler/compile.h"
#include "schema/format/file.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// A kind of plan, tiny.
struct Case {
  const char* name;
  CompileOptions options;
};

std::vector<Case> Cases() {
  ModelConfig untied = PaperModel(2);
  untied.tied = false;
  const ModelConfig two = PaperModel(2), four = PaperModel(4);
  return {
      {"replicas", {.scheme = "1f1b", .shape = {2, 2}, .replicas = 2, .job = {.model = two}}},
      {"shards",
       {.scheme = "1f1b", .shape = {2, 2}, .replicas = 2, .zero = 1, .job = {.model = two}}},
      {"shards, blocking",
       {.scheme = "1f1b",
        .shape = {2, 2},
        .p2p = P2p::kBlocking,
        .replicas = 2,
        .zero = 1,
        .job = {.model = untied}}},
      {"two pipes", {.scheme = "chimera", .shape = {2, 2}, .job = {.model = two}}},
      {"two pipes, shards",
       {.scheme = "chimera", .shape = {2, 2}, .zero = 1, .job = {.model = two}}},
      {"versions", {.scheme = "pipedream", .shape = {2, 2}, .job = {.model = untied}}},
      {"versions, replicas",
       {.scheme = "pipedream",
        .shape = {2, 2},
        .replicas = 2,
        .zero = 1,
        .job = {.model = untied}}},
      {"two versions", {.scheme = "pipedream-2bw", .shape = {2, 2}, .job = {.model = untied}}},
      {"no norm",
       {.scheme = "zb-h1",
        .shape = {2, 2},
        .replicas = 2,
        .zero = 1,
        .clip = false,
        .job = {.model = two}}},
      {"no norm, two pipes",
       {.scheme = "chimera", .shape = {2, 2}, .clip = false, .job = {.model = two}}},
      {"pairs", {.scheme = "dualpipe-v", .shape = {2, 4, 2}, .job = {.model = four}}},
      {"recomputes", {.scheme = "1f1b", .shape = {2, 2}, .passes = "mario", .job = {.model = two}}},
      {"halves",
       {.scheme = "1f1b", .shape = {2, 2}, .passes = "split-backward", .job = {.model = two}}},
      {"tied stages, shards",
       {.scheme = "interleaved",
        .shape = {2, 2, 2},
        .replicas = 2,
        .zero = 1,
        .tied = "0,1,S-1",
        .evaluates = true}},
      {"tied stages, two pipes, no norm",
       {.scheme = "chimera", .shape = {2, 2}, .clip = false, .tied = "0,S-1"}},
      {"segments",
       {.scheme = "fold-aiao", .shape = {2, 2, 2}, .replicas = 2, .job = {.model = four}}},
  };
}

std::string ErrorOf(const Program& program, Depth depth = Depth::kPlan) {
  const Status status = Verify(program, depth);
  return status.ok() ? "right" : status.message();
}

// Calls change(list, i) with each instruction of a copy of `plan`, and expects an error.
template <typename Change>
void BreakEach(const Program& plan, Change change) {
  for (size_t d = 0; d < plan.lists.size(); ++d)
    for (size_t i = 0; i < plan.lists[d].body.size(); ++i) {
      Program broken = plan;
      std::vector<Instruction>& list = broken.lists[d].body;
      INFO("device " << d << ' ' << i << " '" << ToText(list[i]) << "'");
      change(list, i);
      if (list == plan.lists[d].body) continue;
      CHECK(ErrorOf(broken) != "right");
    }
}

// The text of a plan with `line` of device 1 moved: to before `before`, or, with "", removed.
std::string Moved(const Program& plan, const std::string& line, const std::string& before) {
  std::string text = Print(plan);
  auto find = [&](const std::string& what) {
    const size_t at = text.find("  " + what + "\n", text.find("device 1"));
    INFO(text << what);
    REQUIRE(at != std::string::npos);
    return at;
  };
  text.erase(find(line), line.size() + 3);
  if (!before.empty()) text.insert(find(before), "  " + line + "\n");
  return text;
}

// What is reported for a text with messages, reductions and steps.
std::string ErrorOfText(const std::string& text) {
  const auto program = Parse(text, "text");
  return program.ok() ? ErrorOf(*program, Depth::kLists) : program.status().message();
}

std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  INFO(text << what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

}  // namespace

// Text drops the memory, which plan-memory finds again; the file keeps everything.
TEST_CASE("a plan of any kind comes back from text and file") {
  for (const Case& c : Cases()) {
    const Program plan = MustCompile(c.options);
    INFO(c.name);
    auto parsed = Parse(Print(plan), "text");
    REQUIRE(parsed.status().message() == "");
    REQUIRE(Lower(*parsed, Form::kLists, {}).ok());
    CHECK(*parsed == plan);
    const auto decoded = Decode(*Encode(plan), "file");
    REQUIRE(decoded.status().message() == "");
    CHECK(*decoded == plan);
  }
}

TEST_CASE("a plan of any kind without one of its instructions is refused") {
  for (const Case& c : Cases()) {
    const Program plan = MustCompile(c.options);
    INFO(c.name);
    REQUIRE(ErrorOf(plan) == "right");
    BreakEach(plan, [](auto& list, size_t i) { list.erase(list.begin() + i); });
  }
}

TEST_CASE("a plan of any kind with one of its instructions twice is refused") {
  for (const Case& c : Cases()) {
    INFO(c.name);
    BreakEach(MustCompile(c.options), [](auto& list, size_t i) {
      const Instruction copy = list[i];
      list.insert(list.begin() + i, copy);
    });
  }
}

TEST_CASE("a version older or newer by one is refused") {
  for (const Case& c : Cases()) {
    INFO(c.name);
    for (int change : {-1, 1})
      BreakEach(MustCompile(c.options), [&](auto& list, size_t i) {
        if (list[i].version >= 0) list[i].version += static_cast<int16_t>(change);
      });
  }
}

TEST_CASE("all stages step equally often") {
  Program plan = MustCompile({.scheme = "pipedream", .shape = {2, 2}});
  std::vector<Instruction>& body = plan.lists[1].body;
  body.erase(std::find_if(body.begin(), body.end(),
                          [](const Instruction& i) { return i.op == Op::kStep; }));
  CHECK(ErrorOf(plan) ==
        "prologue, 2 bodies, epilogue: device 1: stage 1 makes 3 steps (those before "
        "it make 6)");
}

TEST_CASE("messages about buckets, shards and the norm") {
  const Program reduced = MustCompile(Cases()[0].options);
  CHECK_THAT(ErrorOfText(Moved(reduced, "NORM_grad s1", "WAIT      wgrad s1 b0")),
             Catch::EndsWith("wgrad s1 is being reduced (WAIT for it)"));
  CHECK_THAT(ErrorOfText(Moved(reduced, "REDUCE_grad s1 b0", "BW        s1 m1")),
             Catch::EndsWith("wgrad s1 has the parts of 1 micro-batches out of 2"));
  CHECK_THAT(ErrorOfText(Replaced(Print(reduced), "REDUCE_grad s0 b0", "REDUCE_grad s0 b1")),
             Catch::EndsWith("bucket 1 (b0 is next, of 1)"));
  CHECK_THAT(ErrorOfText(Replaced(Print(reduced), "REDUCE_grad s0 b0", "SCATTER_grad s0 b0")),
             Catch::EndsWith("in a program with zero 0"));
  CHECK_THAT(
      ErrorOfText(Replaced(Print(reduced), "STEP      s0\n", "STEP      s0\n  STEP      s0\n")),
      Catch::EndsWith("after STEP s0"));
  CHECK_THAT(ErrorOfText(Replaced(Print(reduced), "replicas 2\n", "")),
             Catch::EndsWith("stage 0 has one copy"));

  const Program shards = MustCompile(Cases()[1].options);
  CHECK_THAT(ErrorOfText(Moved(shards, "GATHER_weights s1 b0", "STEP      s1")),
             Catch::EndsWith("before STEP s1"));
  // The tied tensor's weights are gathered, but REDUCE_tied sums its gradients.
  CHECK_THAT(ErrorOfText(Replaced(Print(shards), "SCATTER_grad s0 b0", "SCATTER_grad s0 b1")),
             Catch::EndsWith("bucket 1 (b0 is next, of 1)"));
  CHECK_THAT(ErrorOfText(Moved(shards, "NORM_grad s1", "WAIT      tied")),
             Catch::EndsWith("wgrad s1 is being reduced (WAIT for it)"));
  CHECK_THAT(ErrorOfText(Moved(shards, "REDUCE_tied", "BW        s1 m1")),
             Catch::EndsWith("wgrad s1 has the parts of 1 micro-batches out of 2"));
}

TEST_CASE("without a norm a copy steps as soon as its gradients are complete") {
  auto steps_of = [](const CompileOptions& options, int device) {
    const Program program = MustCompile(options);
    std::string steps;
    for (const Instruction& i : program.lists[device].body)
      if (Info(i.op).lane == Lane::kReduce || i.op == Op::kStep || i.op == Op::kNormGrad ||
          (i.op == Op::kWait && i.value != Kind::kAct && i.value != Kind::kGrad))
        steps += ToText(i) + "\n";
    return steps;
  };
  CompileOptions options{.scheme = "interleaved", .shape = {2, 2, 2}, .clip = false};
  CHECK(steps_of(options, 0) == "STEP s2\nSTEP s0\n");
  options.job.model = PaperModel(4);
  options.replicas = 2;
  options.zero = 1;
  CHECK(steps_of(options, 1) ==
        "SCATTER_grad s3 b0\nREDUCE_tied\nSCATTER_grad s1 b0\nWAIT wgrad s3 b0\nWAIT tied\n"
        "STEP s3\nGATHER_weights s3 b0\nGATHER_weights s3 b1\nWAIT wgrad s1 b0\nSTEP s1\n"
        "GATHER_weights s1 b0\nWAIT weights s3 b0\nWAIT weights s3 b1\nWAIT weights s1 b0\n");
  const std::string text = Print(MustCompile(options));
  CHECK_THAT(ErrorOfText(Replaced(text, "clip off\n", "")),
             Catch::EndsWith("STEP before 'WAIT norm'"));
  CHECK_THAT(ErrorOfText(Replaced(text, "STEP      s3\n", "NORM_grad s3\n  STEP      s3\n")),
             Catch::EndsWith("in a program without a gradient norm"));
}

TEST_CASE("messages about versions") {
  const Program plan = MustCompile({.scheme = "pipedream", .shape = {2, 2}});
  const auto with_version = [&](const char* instruction, int16_t version) {
    Program changed = plan;
    auto& body = changed.lists[0].body;
    const auto found = std::find_if(body.begin(), body.end(),
                                    [&](const Instruction& i) { return ToText(i) == instruction; });
    REQUIRE(found != body.end());
    found->version = version;
    return ErrorOf(changed);
  };
  CHECK_THAT(with_version("BW s0 m1 v1", 0),
             Catch::EndsWith("has weights after 1 updates, but stash s0 m1 was made with those "
                             "after 0"));
  CHECK_THAT(with_version("FW s0 m2 v0", -1),
             Catch::EndsWith("has no version (this device's STEPs make versions)"));
  CHECK_THAT(with_version("STEP s0 v0", 1), Catch::EndsWith("makes the newest version (v0)"));
  // Between two steps a reduction is started after everything that the second one takes.
  Program reduced = MustCompile({.scheme = "pipedream-2bw", .shape = {2, 2}, .replicas = 2});
  auto& list = reduced.lists[1].body;
  const auto reduce = std::find_if(list.begin(), list.end(),
                                   [](const Instruction& i) { return i.op == Op::kReduceGrad; });
  auto last = reduce;
  while (last->op != Op::kBackward) --last;
  std::rotate(last, reduce, reduce + 1);
  CHECK_THAT(ErrorOf(reduced), Catch::EndsWith("adds to wgrad s1 after its reduction"));
  const std::string plain = Print(MustCompile({.scheme = "1f1b", .shape = {2, 2}}));
  CHECK_THAT(ErrorOfText(Replaced(plain, "FW        s0 m0", "FW        s0 m0 v0")),
             Catch::EndsWith("has a version (this device's STEPs make none)"));
}

TEST_CASE("messages about overlapping pairs") {
  const std::string text = Print(MustCompile({.scheme = "dualpipe-v", .shape = {2, 4, 2}}));
  CHECK_THAT(
      ErrorOfText(Replaced(text, "BW        s3 m1 overlap", "BW        s3 m1")),
      Catch::Contains("'FW s0 m3 overlap'") && Catch::EndsWith("has no neighbour to overlap with"));
  const std::string plain = Print(MustCompile({.scheme = "1f1b", .shape = {2, 2}}));
  const std::string wait = "  WAIT      grad s0 m0 sent\n";
  CHECK_THAT(ErrorOfText(Replaced(plain, "FW        s1 m1\n" + wait + "  BW        s1 m1\n",
                                  "FW s1 m1 overlap\n  BW s1 m1 overlap\n" + wait)),
             Catch::EndsWith("overlaps what makes stash s1 m1"));
}

TEST_CASE("what a scheme says it needs is what it checks") {
  const std::map<std::string_view, std::function<bool(int, int)>> kNeeds = {
      {"", [](int, int) { return true; }},
      {"M >= D", [](int d, int m) { return m >= d; }},
      {"M >= 2 D", [](int d, int m) { return m >= 2 * d; }},
      {"M >= 2 D - 1", [](int d, int m) { return m >= 2 * d - 1; }},
      {"M a multiple of D", [](int d, int m) { return m % d == 0; }},
      {"M a multiple of D unless in other groups", [](int d, int m) { return m % d == 0; }},
      {"D even, M a multiple of twice the pairs",
       [](int d, int m) { return d % 2 == 0 && m % 2 == 0; }},
      {"D and M even, M >= 2 D",
       [](int d, int m) { return d % 2 == 0 && m % 2 == 0 && m >= 2 * d; }},
      {"V even", [](int, int) { return true; }}};  // of the sizes, which are V's default here
  for (const Scheme& scheme : Schemes()) {
    REQUIRE(kNeeds.count(scheme.needs) == 1);
    for (int d = 1; d <= 6; ++d)
      for (int m = 1; m <= 14; ++m) {
        INFO(scheme.name << " D " << d << " M " << m);
        const Shape shape{.devices = d, .microbatches = m, .stages_per_device = 0};
        CHECK(BuildSchedule(std::string(scheme.name), shape).ok() == kNeeds.at(scheme.needs)(d, m));
      }
  }
  CHECK(!BuildSchedule("hanayo", {.devices = 2, .microbatches = 4, .stages_per_device = 3}).ok());
}

}  // namespace pp
