// The weight gradients of one device: the order of backwards, reductions, norm and step, told to
// Sums instruction by instruction.
#include "schema/semantics/sums.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// Device 0's instructions of a plan that concern sums.
struct Told {
  Program program;
  std::vector<Instruction> list;
};

bool ConcernsSums(const Instruction& i) {
  const Lane lane = Info(i.op).lane;
  return lane == Lane::kReduce || i.op == Op::kBackward || i.op == Op::kNormGrad ||
         i.op == Op::kStep ||
         (i.op == Op::kWait && i.value != Kind::kAct && i.value != Kind::kGrad);
}

Told Tell(const CompileOptions& options) {
  Told told{.program = MustCompile(options)};
  for (Instruction i : told.program.lists[0].body)
    if (ConcernsSums(i)) told.list.push_back(i);
  return told;
}

// "right", or the first error with its instruction.
std::string ErrorOf(const Told& told, std::vector<int>* waits = nullptr) {
  const Placement placement(told.program);
  Sums sums(told.program, placement, 0, Depth::kLists, 1);
  const int end = static_cast<int>(told.list.size());
  for (int index = 0; index < end; ++index) {
    const Instruction& i = told.list[index];
    int after = -1;
    const Status status = i.op == Op::kBackward ? sums.AddPart(i, index)
                          : i.op == Op::kWait   ? sums.Wait(i, &after)
                                                : sums.Visit(i, index, &after);
    if (waits) waits->push_back(after);
    if (!status.ok()) return ToText(i) + ": " + status.message();
  }
  int index = -1;
  const Status status = sums.CheckEnd(&index);
  if (status.ok()) return "right";
  return index < 0 ? status.message() : ToText(told.list[index]) + ": " + status.message();
}

CompileOptions Options(int replicas, int zero, bool tied) {
  CompileOptions options{.scheme = "1f1b",
                         .shape = {1, 2},
                         .replicas = replicas,
                         .zero = zero,
                         .job = {.model = PaperModel(2)}};
  options.job.model.tied = tied;
  return options;
}

}  // namespace

TEST_CASE("what reductions, the norm and their WAITs wait for") {
  std::vector<int> waits;
  CHECK(ErrorOf(Tell(Options(2, 0, false)), &waits) == "right");
  // BW BW REDUCE_grad WAIT NORM_grad REDUCE_norm WAIT STEP
  CHECK(waits == std::vector<int>{-1, -1, 1, 2, -1, 4, 5, -1});
  waits.clear();
  CHECK(ErrorOf(Tell(Options(2, 1, false)), &waits) == "right");
  // BW BW SCATTER_grad WAIT NORM_grad REDUCE_norm WAIT STEP GATHER_weights WAIT
  CHECK(waits == std::vector<int>{-1, -1, 1, 2, -1, 4, 5, -1, 7, 8});
}

// Without any one of them, with any one twice, and with any two neighbours exchanged that depend on
// each other: an error that names the instruction or the stage.
TEST_CASE("no instruction of a step may be missing, be there twice, or come early") {
  for (const int zero : {0, 1})
    for (const bool tied : {false, true}) {
      const Told told = Tell(Options(2, zero, tied));
      REQUIRE(ErrorOf(told) == "right");
      for (size_t i = 0; i < told.list.size(); ++i) {
        INFO("zero " << zero << ", tied " << tied << ", '" << ToText(told.list[i]) << "'");
        Told without = told, twice = told;
        without.list.erase(without.list.begin() + i);
        CHECK(ErrorOf(without) != "right");
        twice.list.insert(twice.list.begin() + i, told.list[i]);
        CHECK(ErrorOf(twice) != "right");
        if (i + 1 == told.list.size()) continue;
        Told early = told;
        std::swap(early.list[i], early.list[i + 1]);
        const auto is_backward = [&](size_t k) { return told.list[k].op == Op::kBackward; };
        const auto is_bucket = [&](size_t k) {
          return Info(told.list[k].op).lane == Lane::kReduce || told.list[k].op == Op::kWait;
        };
        // Two backwards may change places, and a reduction may start before another is waited for.
        const bool independent =
            (is_backward(i) && is_backward(i + 1)) ||
            (is_bucket(i) && is_bucket(i + 1) && told.list[i].value != Kind::kNorm &&
             told.list[i + 1].value != Kind::kNorm && ErrorOf(early) == "right");
        if (!independent) CHECK(ErrorOf(early) != "right");
      }
    }
}

TEST_CASE("errors say what is wrong with the sum") {
  const Told told = Tell(Options(2, 0, false));
  const auto with = [&](auto change) {
    Told changed = told;
    change(changed.list);
    return ErrorOf(changed);
  };
  using List = std::vector<Instruction>;
  CHECK(with([](List& l) { l.erase(l.begin()); }) ==
        "REDUCE_grad s0 b0: wgrad s0 has the parts of 1 micro-batches out of 2");
  CHECK(with([](List& l) { std::swap(l[1], l[2]); }) ==
        "REDUCE_grad s0 b0: wgrad s0 has the parts of 1 micro-batches out of 2");
  CHECK(with([](List& l) { l.insert(l.begin() + 3, l[0]); }) ==
        "BW s0 m0: adds to wgrad s0 after its reduction");
  CHECK(with([](List& l) { l.erase(l.begin() + 3); }) ==
        "NORM_grad s0: wgrad s0 is being reduced (WAIT for it)");
  CHECK(with([](List& l) { l.erase(l.begin() + 2, l.begin() + 4); }) ==
        "NORM_grad s0: wgrad s0 has 0 of 1 buckets reduced over its copies");
  CHECK(with([](List& l) { l[2].bucket = 1; }) == "REDUCE_grad s0 b1: bucket 1 (b0 is next, of 1)");
  CHECK(with([](List& l) { l[2].op = Op::kScatterGrad; }) ==
        "SCATTER_grad s0 b0: in a program with zero 0");
  CHECK(with([](List& l) { l.erase(l.begin() + 6); }) == "STEP s0: STEP before 'WAIT norm'");
  CHECK(with([](List& l) { l.pop_back(); }) == "device 0: no STEP s0");
  CHECK(with([](List& l) { l.push_back(l.back()); }) == "STEP s0: after STEP s0");
  CHECK(with([](List& l) { l.insert(l.begin() + 5, l[4]); }) == "NORM_grad s0: a second time");
}

TEST_CASE("the next body starts over") {
  const Told told = Tell(Options(1, 0, false));
  Program program = told.program;
  program.pipe_of.resize(4, 0);  // two bodies of two micro-batches
  program.microbatches = 4;
  const Placement placement(program);
  Sums sums(program, placement, 0, Depth::kLists, 2);
  int index = -1;
  for (int body = 0; body < 2; ++body) {
    for (const Instruction& i : told.list) {
      int after = -1;
      const Status status = i.op == Op::kBackward ? sums.AddPart(i, 0)
                            : i.op == Op::kWait   ? sums.Wait(i, &after)
                                                  : sums.Visit(i, 0, &after);
      INFO(ToText(i) << ": " << status.message());
      CHECK(status.ok());
    }
    CHECK((body == 0 ? sums.NextBody(&index) : sums.CheckEnd(&index)).message() == "");
  }
  CHECK(sums.NextBody(&index).ok());
  CHECK(sums.CheckEnd(&index).message() == "device 0: no STEP s0");
}

}  // namespace pp
