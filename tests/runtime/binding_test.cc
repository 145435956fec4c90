// The result of binding a body: addresses, versions and steps, checked against the list played by
// hand, instruction after instruction, iteration after iteration.
#include "runtime/plan/binding.h"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "compiler/compile.h"
#include "runtime/device/cpu_device.h"
#include "schema/sections.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

Program PlanOf(CompileOptions options) {
  options.job.model =
      SmallModel("gpt2", /*tied=*/!options.scheme.starts_with("pipedream"), /*layers=*/8);
  return MustCompile(options);
}

// A device of a plan, bound.
struct Bound {
  Bound(const Program& program, int number)
      : list(program.lists[number].body), device(MakeCpuDevice()) {
    BodyWalk walk;
    REQUIRE(WalkBody(program, number, &walk).message() == "");
    REQUIRE(device->Allocate(program.lists[number].arena_bytes).ok());
    bound = Bind(program, number, std::move(walk), *device);
  }
  int IndexOf(const std::string& text) const {
    for (size_t i = 0; i < list.size(); ++i)
      if (ToText(list[i]) == text) return static_cast<int>(i);
    FAIL(text);
    return -1;
  }
  const StageCall& CallOf(const std::string& text) const { return bound.calls[IndexOf(text)]; }

  const std::vector<Instruction>& list;
  std::unique_ptr<Device> device;
  BoundList bound;
};

std::vector<CompileOptions> AllKinds() {
  return {{.scheme = "1f1b", .shape = {2, 4}},
          {.scheme = "1f1b", .shape = {4, 8}, .p2p = P2p::kBlocking},
          {.scheme = "interleaved", .shape = {2, 4, 2}, .passes = "mario"},
          {.scheme = "zb-h1", .shape = {2, 4}},
          {.scheme = "chimera", .shape = {2, 4}},
          {.scheme = "chimera", .shape = {4, 8}, .replicas = 2, .zero = 1},
          {.scheme = "dualpipe", .shape = {2, 8}},
          {.scheme = "pipedream", .shape = {1, 4}},
          {.scheme = "pipedream", .shape = {2, 4}},
          {.scheme = "pipedream", .shape = {4, 5}, .p2p = P2p::kBlocking},
          {.scheme = "pipedream-2bw", .shape = {1, 4}},
          {.scheme = "pipedream-2bw", .shape = {4, 4}},
          {.scheme = "pipedream-2bw", .shape = {4, 6}}};
}

// Calls f(options, program, device) for every device of every kind of plan.
template <typename F>
void ForAll(const F& f) {
  for (const CompileOptions& options : AllKinds()) {
    const Program program = PlanOf(options);
    for (int device = 0; device < program.devices; ++device) {
      INFO(options.scheme << " D=" << options.shape.devices << " M=" << options.shape.microbatches
                          << " device " << device);
      f(program, device, Bound(program, device));
    }
  }
}

using Copy = std::pair<int, int>;  // stage, pipe
Copy CopyOf(const Program& program, const Instruction& i) {
  if (i.micro < 0) return {i.stage, std::max<int>(i.pipe, 0)};
  return {i.stage, program.pipe_of[i.micro % program.microbatches]};
}

// The iterations of a training of `steps` steps.
std::vector<Iteration> Iterations(const Program& program, int64_t steps) {
  std::vector<Iteration> iterations;
  const bool overlaps = program.overlaps;
  for (int64_t n = 1; n <= steps + (overlaps ? 1 : 0); ++n)
    iterations.push_back({n, BodyPart::kAll});
  if (overlaps) {
    iterations.front().part = BodyPart::kAhead;
    iterations.back().part = BodyPart::kRest;
  }
  return iterations;
}

bool IsOfStage(const Instruction& i) {
  return i.stage >= 0 && Info(i.op).lane == Lane::kCompute && i.op != Op::kWait;
}

}  // namespace

TEST_CASE("prologue, bodies and epilogue are one stream, which makes each step whole") {
  ForAll([](const Program& program, int device, const Bound& b) {
    const Sections sections = SectionsOf(program, device);
    std::map<std::pair<int64_t, std::string>, int> executed;  // by step, and text without the step
    for (const Iteration& iteration : Iterations(program, 4)) {
      size_t in_section = 0;
      for (size_t i = 0; i < b.list.size(); ++i) {
        if (!b.bound.Executes(static_cast<int>(i), iteration.part)) continue;
        Instruction instruction = b.list[i];
        if (iteration.part != BodyPart::kAll) {
          const auto& section =
              iteration.part == BodyPart::kAhead ? sections.prologue : sections.epilogue;
          REQUIRE(in_section < section.size());
          CHECK(section[in_section].op == instruction.op);
          CHECK(section[in_section].stage == instruction.stage);
          ++in_section;
        }
        if (instruction.op == Op::kWait) continue;  // for what the iteration before has begun, too
        const int64_t step = b.bound.StepOf(static_cast<int>(i), iteration);
        if (instruction.micro >= program.microbatches) instruction.micro -= program.microbatches;
        const bool repeated = instruction.op == Op::kStep;  // several of the same in a step
        const int count = ++executed[{step, ToText(instruction)}];
        CHECK((count == 1 || repeated));
        CHECK(step >= 1);
        CHECK(step <= 4);
      }
      if (iteration.part == BodyPart::kAhead) CHECK(in_section == sections.prologue.size());
      if (iteration.part == BodyPart::kRest) CHECK(in_section == sections.epilogue.size());
    }
    // The same number in each step.
    std::map<int64_t, size_t> names;
    for (const auto& [key, count] : executed) ++names[key.first];
    for (int64_t step = 2; step <= 4; ++step) CHECK(names[step] == names[1]);
  });
}

TEST_CASE("updates and versions are those of the STEPs that were executed before") {
  ForAll([](const Program& program, int, const Bound& b) {
    std::map<Copy, int64_t> updates;
    for (const Iteration& iteration : Iterations(program, 6))
      for (size_t i = 0; i < b.list.size(); ++i) {
        const auto index = static_cast<int>(i);
        if (!IsOfStage(b.list[i]) || !b.bound.Executes(index, iteration.part)) continue;
        const Copy copy = CopyOf(program, b.list[i]);
        const int64_t done = updates[copy];
        CHECK(b.bound.Updates(index, iteration) == done);
        for (int64_t age = 0; age < b.bound.versions[i]; ++age)
          CHECK(b.bound.SlotOf(index, iteration, age) ==
                std::max<int64_t>(0, done - age) % b.bound.versions[i]);
        updates[copy] += b.list[i].op == Op::kStep;
      }
  });
}

TEST_CASE("a backward finds the version that its forward used, which no STEP has overwritten") {
  ForAll([](const Program& program, int, const Bound& b) {
    if (!program.scheme.starts_with("pipedream")) return;
    std::map<std::pair<Copy, int64_t>, int64_t> version_at;  // place -> what it holds
    std::map<Copy, int64_t> updates;
    std::map<std::pair<int64_t, int>, int64_t> used;  // step, micro-batch -> version
    for (const Iteration& iteration : Iterations(program, 6))
      for (size_t i = 0; i < b.list.size(); ++i) {
        const auto index = static_cast<int>(i);
        const Instruction& instruction = b.list[i];
        if (!IsOfStage(instruction) || !b.bound.Executes(index, iteration.part)) continue;
        const Copy copy = CopyOf(program, instruction);
        const std::pair<int64_t, int> micro{b.bound.StepOf(index, iteration),
                                            instruction.micro % program.microbatches};
        const int64_t age = std::max<int64_t>(0, instruction.version);
        const int64_t at = b.bound.SlotOf(index, iteration, age);
        if (instruction.op == Op::kForward) used[micro] = version_at[{copy, at}];
        if (instruction.op == Op::kBackward) CHECK(version_at[{copy, at}] == used.at(micro));
        if (instruction.op != Op::kStep) continue;
        CHECK(version_at[{copy, at}] == updates[copy]);  // it starts from the newest
        const int64_t made = ++updates[copy];
        version_at[{copy, made % b.bound.versions[i]}] = made;
      }
  });
}

TEST_CASE("the first micro-batch after a STEP sets the gradients, the others add") {
  ForAll([](const Program& program, int, const Bound& b) {
    std::map<Copy, int> parts;
    for (int round = 0; round < 2; ++round)
      for (size_t i = 0; i < b.list.size(); ++i) {
        if (!IsOfStage(b.list[i])) continue;
        int& count = parts[CopyOf(program, b.list[i])];
        if (b.list[i].op == Op::kStep) count = 0;
        if (b.list[i].op != Op::kBackward && b.list[i].op != Op::kBackwardWeight) continue;
        INFO(ToText(b.list[i]));
        CHECK(b.bound.calls[i].accumulate ==
              (count++ == 0 ? kernels::Update::kSet : kernels::Update::kAdd));
      }
  });
}

// Played by name: the producer of a value last left it where its reader looks, in the same
// iteration or in the previous one.
TEST_CASE("a reader finds each value where its maker left it, also from the body before") {
  ForAll([](const Program& program, int, const Bound& b) {
    using Name = std::tuple<Kind, int, int>;
    std::map<Name, const void*> at;
    const int last = program.stages - 1;
    int checked = 0;
    for (int round = 0; round < 2; ++round)
      for (size_t i = 0; i < b.list.size(); ++i) {
        const Instruction& instruction = b.list[i];
        const StageCall& call = b.bound.calls[i];
        const int s = instruction.stage;
        const int m = instruction.micro < 0 ? -1 : instruction.micro % program.microbatches;
        INFO(ToText(instruction) << " round " << round);
        auto made = [&](Kind kind, int stage, const void* place) {
          CHECK(place != nullptr);
          at[{kind, stage, m}] = place;
        };
        auto read = [&](Kind kind, int stage, const void* place) {
          const auto found = at.find({kind, stage, m});
          if (found == at.end()) {
            CHECK(round == 0);  // of the prologue
            return;
          }
          ++checked;
          CHECK(place == found->second);
        };
        switch (instruction.op) {
          case Op::kLoad:
            if (s == 0) made(Kind::kTokens, 0, call.tokens);
            if (s == last) made(Kind::kTargets, s, call.targets);
            break;
          case Op::kRecvAct:
            made(Kind::kAct, s, b.bound.data[i]);
            CHECK(b.bound.bytes[i] == LayoutStage(*program.job, s).act_bytes);
            break;
          case Op::kRecvGrad:
            made(Kind::kGrad, s, b.bound.data[i]);
            break;
          case Op::kSendAct:
            read(Kind::kAct, s, b.bound.data[i]);
            break;
          case Op::kSendGrad:
            read(Kind::kGrad, s, b.bound.data[i]);
            break;
          case Op::kForward:
          case Op::kForwardDrop:
            CHECK(call.micro == m);
            if (s == 0) read(Kind::kTokens, 0, call.tokens);
            if (s > 0) read(Kind::kAct, s - 1, call.act_before);
            if (s == last) read(Kind::kTargets, s, call.targets);
            if (s < last) made(Kind::kAct, s, call.act);
            if (instruction.op == Op::kForward) made(Kind::kStash, s, call.stash);
            break;
          case Op::kRecompute:
            made(Kind::kStash, s, call.stash);
            break;
          case Op::kBackward:
          case Op::kBackwardInput:
            read(Kind::kStash, s, call.stash);
            if (s < last) read(Kind::kGrad, s, call.grad);
            if (s > 0) made(Kind::kGrad, s - 1, call.grad_before);
            if (instruction.op == Op::kBackwardInput) made(Kind::kWork, s, call.work);
            break;
          case Op::kBackwardWeight:
            read(Kind::kWork, s, call.work);
            break;
          default:
            break;
        }
      }
    CHECK(checked > 0);
  });
}

TEST_CASE("what PipeDream hands from one body to the next lies still") {
  const Program program = PlanOf({.scheme = "pipedream", .shape = {2, 2}});
  const Bound d0(program, 0);
  // The forward of the next step's m0 leaves what the next body's first backward reads.
  CHECK(d0.CallOf("FW s0 m2 v0").stash == d0.CallOf("BW s0 m0 v1").stash);
  CHECK(d0.CallOf("FW s0 m2 v0").tokens == d0.CallOf("BW s0 m0 v1").tokens);
  CHECK(d0.CallOf("FW s0 m2 v0").micro == 0);
  CHECK(d0.CallOf("FW s0 m1 v0").stash != d0.CallOf("FW s0 m2 v0").stash);
  CHECK(d0.bound.versions[d0.IndexOf("FW s0 m2 v0")] == 2);
  const Bound d1(program, 1);
  CHECK(d1.bound.versions[d1.IndexOf("FW s1 m0 v0")] == 1);
}

TEST_CASE("blocking messages stand in the compute lane and wait for their place in it") {
  ForAll([](const Program& program, int, const Bound& b) {
    std::vector<int32_t> lane;
    for (size_t i = 0; i < b.list.size(); ++i)
      if (Info(b.list[i].op).lane == Lane::kCompute ||
          (IsMessage(b.list[i]) && program.p2p == P2p::kBlocking))
        lane.push_back(static_cast<int32_t>(i));
    CHECK(b.bound.compute == lane);
    if (program.p2p != P2p::kBlocking) return;
    for (size_t k = 0; k < lane.size(); ++k) {
      if (!IsMessage(b.list[lane[k]])) continue;
      const Dependence before = k > 0 ? Dependence{0, lane[k - 1]} : Dependence{-1, lane.back()};
      CHECK(b.bound.waits_for[lane[k]] == before);
    }
  });
}

TEST_CASE("what another lane waits for rings its bell") {
  ForAll([](const Program&, int, const Bound& b) {
    std::set<int32_t> releases;
    for (size_t i = 0; i < b.list.size(); ++i)
      if (Info(b.list[i].op).lane != Lane::kCompute && b.bound.waits_for[i].index >= 0)
        releases.insert(b.bound.waits_for[i].index);
    for (size_t i = 0; i < b.list.size(); ++i)
      CHECK(b.bound.releases[i] == (releases.count(static_cast<int32_t>(i)) == 1));
  });
}

TEST_CASE("regions by kind, stage and pipe") {
  const Program program = PlanOf({.scheme = "chimera", .shape = {2, 4}});
  const DeviceList& list = program.lists[0];
  std::set<int64_t> places;
  for (const auto& [stage, pipe] : {std::pair{0, 0}, std::pair{1, 1}}) {
    const Region* weights = FindRegion(list, Kind::kWeights, stage, pipe);
    REQUIRE(weights != nullptr);
    CHECK(weights->bytes == LayoutStage(*program.job, stage).weights_bytes);
    CHECK(places.insert(weights->offset).second);
  }
  CHECK(FindRegion(list, Kind::kWeights, 0, 1) == nullptr);  // on device 1
  CHECK(FindRegion(list, Kind::kNorm, -1, -1) != nullptr);
  CHECK(FindRegion(list, Kind::kNorm, 1, 0) == FindRegion(list, Kind::kNorm, -1, -1));
}

}  // namespace pp
