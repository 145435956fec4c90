// The check of a plan's memory against one that knows nothing but bytes, on random values; and what
// it says.
#include "schema/semantics/memory.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kArena = 24;

Program WithArena(std::vector<Region> regions = {}) {
  Program program;
  program.devices = program.stages = program.microbatches = 1;
  program.lists.resize(1);
  program.lists[0].arena_bytes = kArena;
  program.lists[0].regions = std::move(regions);
  return program;
}

struct Taken {
  int64_t offset, bytes;
};

}  // namespace

TEST_CASE("values at random places: the check is that of single bytes") {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  int refused = 0, taken = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<Instruction> list(40);
    for (Instruction& i : list) i.offset[0] = below(kArena + 2) - 1;
    const Program program = WithArena({{.kind = Kind::kWeights, .offset = 5, .bytes = 3}});
    MemoryCheck check(program, 0, list);
    std::vector<bool> live(kArena);
    std::vector<int> last_use(kArena, -1);
    std::fill_n(live.begin() + 5, 3, true);
    std::vector<Taken> held;
    for (int index = 0; index < static_cast<int>(list.size()); ++index) {
      if (!held.empty() && below(3) > 0) {
        const size_t which = below(static_cast<int>(held.size()));
        const Taken gone = held[which];
        held.erase(held.begin() + which);
        check.Free(gone.offset, gone.bytes, index);
        for (int64_t b = gone.offset; b < gone.offset + gone.bytes; ++b)
          live[b] = false, last_use[b] = index;
        continue;
      }
      const int64_t bytes = 1 + below(6), begin = list[index].offset[0];
      bool right = begin >= 0 && begin + bytes <= kArena;
      int expected = -1;
      for (int64_t b = begin; right && b < begin + bytes; ++b) {
        right = !live[b];
        expected = std::max(expected, last_use[b]);
      }
      int64_t offset = -1;
      int32_t used = -1;
      const bool ok = check.Take({{Kind::kAct, 0, index}, bytes, index, 0}, &offset, &used).ok();
      REQUIRE(ok == right);
      ++(ok ? taken : refused);
      if (!ok) break;  // a walk ends with its first error
      CHECK(offset == begin);
      CHECK(used == expected);
      std::fill_n(live.begin() + begin, bytes, true);
      // What was used before is over with the value that is there now.
      std::fill_n(last_use.begin() + begin, bytes, -1);
      held.push_back({begin, bytes});
    }
  }
  CHECK(refused > 1000);
  CHECK(taken > 1000);
}

TEST_CASE("the check says which value is where") {
  std::vector<Instruction> list(3);
  list[0].offset[0] = 4;
  list[1].offset[0] = 6;
  list[2].offset[0] = kArena - 1;
  const Program program = WithArena();
  MemoryCheck check(program, 0, list);
  int64_t offset;
  int32_t used;
  const auto take = [&](int index, int64_t bytes) {
    return check.Take({{Kind::kAct, 0, index}, bytes, index, 0}, &offset, &used).message();
  };
  CHECK(take(0, 4) == "");
  CHECK(take(1, 2) == "act s0 m1 at bytes 6 to 8 overlaps a value in use");
  CHECK(take(2, 2) == "act s0 m2 at bytes 23 to 25 is outside the arena of 24 bytes");
}

TEST_CASE("with a model values lie at multiples of 64 bytes") {
  Program plan = MustCompile({.scheme = "1f1b", .shape = {1, 1}, .job = {.model = PaperModel(1)}});
  plan.lists[0].regions.clear();
  std::vector<Instruction> list(1);
  list[0].offset[0] = 32;
  MemoryCheck check(plan, 0, list);
  int64_t offset;
  int32_t used;
  CHECK(check.Take({{Kind::kStash, 0, 0}, 8, 0, 0}, &offset, &used).message() ==
        "stash s0 m0 at bytes 32 to 40 (multiples of 64)");
}

TEST_CASE("bytes of values: of the model, or one") {
  const Program nominal = MustCompile({.scheme = "1f1b", .shape = {2, 2}});
  const ValueBytes one(nominal);
  CHECK(one({Kind::kTokens, 0}) == 1);
  CHECK(one({Kind::kTokens, 1}) == 0);
  CHECK(one({Kind::kTargets, 0}) == 0);
  CHECK(one({Kind::kTargets, 1}) == 1);
  CHECK(one({Kind::kAct, 0}) == 1);
  CHECK(one({Kind::kAct, 1}) == 0);
  CHECK(one.SecondPiece(Op::kForward, {Kind::kStash, 0}) == one({Kind::kInput, 0}));

  CompileOptions options{.scheme = "1f1b", .shape = {2, 2}, .job = {.model = PaperModel(2)}};
  options.job.recompute = {OperatorKind::kAttention};
  options.fit.limit.values = {1};
  const Program plan = MustCompile(options);
  const ValueBytes bytes(plan);
  for (int s = 0; s < 2; ++s) {
    const StageLayout layout = LayoutStage(*plan.job, s);
    CHECK(bytes({Kind::kStash, s}) == layout.stash_bytes);
    CHECK(bytes({Kind::kAct, s}) == layout.act_bytes);
    CHECK(bytes({Kind::kWork, s}) == layout.work_bytes);
    // FW leaves both pieces, CFW one, RE the other.
    CHECK(bytes.SecondPiece(Op::kForward, {Kind::kStash, s}) == layout.kept_bytes);
    CHECK(bytes.SecondPiece(Op::kRecompute, {Kind::kStash, s}) == 0);
    CHECK(bytes.SecondPiece(Op::kForward, {Kind::kAct, s}) == 0);
  }
}

}  // namespace pp
