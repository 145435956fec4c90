// A timeline whose plan changes step by step says at any time what the clock and the ledger say of
// the whole plan; a move that it refuses is one of which the clock says that its lists wait for one
// another; and what is undone is as it was.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "compiler/search/clock.h"
#include "compiler/search/ledger.h"
#include "compiler/search/timeline.h"
#include "tests/scheme_problem.h"

namespace pp::search {
namespace {

// What a timeline says, with what Clock and ledger say of its plan.
void CheckAgainstClock(const Problem& problem, Timeline& line, double makespan) {
  Clock clock(problem);
  REQUIRE(clock.Earliest(line.plan()) == makespan);
  for (int d = 0; d < problem.devices; ++d) {
    const auto& list = line.list(d);
    for (size_t i = 0; i < list.size(); ++i) {
      REQUIRE(line.position(list[i]) == static_cast<int>(i));
      REQUIRE(line.start(list[i]) == clock.end(list[i]) - problem.time[list[i]]);
    }
    const int64_t above = Peak(problem, line.plan(), d) - problem.memory.limit[d];
    REQUIRE((line.FirstAbove(d) < 0) == (above <= 0));
  }
}

struct Counts {
  int moved = 0, cycles = 0, above = 0, below = 0, undone = 0;
};

// One random change; false: a move that would make a cycle, which the clock confirms.
bool ChangeSomething(const Problem& problem, std::mt19937& random, Timeline& line, Counts* counts) {
  const int device = static_cast<int>(random() % static_cast<unsigned>(problem.devices));
  const auto& list = line.list(device);
  const int size = static_cast<int>(list.size());
  const int from = static_cast<int>(random() % static_cast<unsigned>(size));
  const int cell = CellOf(list[from]);
  if (random() % 4 == 0) {
    if (line.plan().dropped[cell]) {
      line.Keep(cell);
    } else {
      line.Drop(cell);
    }
    return true;
  }
  const int step = random() % 2 == 0 ? 1 : -1, most = 1 + static_cast<int>(random() % 12);
  int to = from;
  while (std::abs(to - from) < most && to + step >= 0 && to + step < size &&
         MaySwap(problem, list[to + step], list[from]))
    to += step;
  Plan moved = line.plan();
  auto& tasks = moved.lists[device];
  const Task task = tasks[from];
  tasks.erase(tasks.begin() + from);
  tasks.insert(tasks.begin() + to, task);
  const bool done = line.Move(device, from, to);
  ++(done ? counts->moved : counts->cycles);
  REQUIRE(done == (Clock(problem).Earliest(moved) != kNever));
  if (done) REQUIRE(line.plan().lists == moved.lists);
  return done;
}

}  // namespace

TEST_CASE("changes of a timeline are those of its plan") {
  struct Case {
    const char* scheme;
    Shape shape;
    double limit;
  };
  const Case cases[] = {{"1f1b", {3, 5}, 2},
                        {"zb-h1", {4, 6}, 3},
                        {"zb-v", {3, 4, 2}, 2.5},
                        {"interleaved", {2, 4, 2}, 2},
                        {"chimera", {4, 4}, 2.2}};
  for (const Case& c : cases) {
    INFO(c.scheme);
    const Problem problem =
        MakeSchemeProblem(c.scheme, c.shape, "f=1,b=2.25,bi=1.5,bw=0.5,comm=0.125,in=0.1", c.limit)
            .problem;
    const auto program = BuildSchedule(c.scheme, c.shape);
    Timeline line(problem);
    line.Load(MakePlan(*program, problem));
    std::mt19937 random(7);
    Counts counts;
    Plan committed = line.plan();
    double makespan = line.makespan();
    for (int n = 0; n < 3000; ++n) {
      bool legal = true;
      for (unsigned changes = 1 + random() % 3; legal && changes > 0; --changes)
        legal = ChangeSomething(problem, random, line, &counts);
      if (!legal) {
        line.Undo();
      } else {
        const double now = Clock(problem).Earliest(line.plan());
        const double cutoff = random() % 2 == 0 ? kNever : makespan + (random() % 5) - 2.0;
        const double result = line.Retime(cutoff);
        REQUIRE(result == (now > cutoff ? kNever : now));
        ++(now > cutoff ? counts.above : counts.below);
        if (result != kNever && random() % 3 > 0) {
          CheckAgainstClock(problem, line, result);
          line.Commit();
          committed = line.plan();
          makespan = result;
          continue;
        }
        line.Undo();
      }
      ++counts.undone;
      REQUIRE(line.makespan() == makespan);
      REQUIRE(line.plan().lists == committed.lists);
      REQUIRE(line.plan().dropped == committed.dropped);
      CheckAgainstClock(problem, line, makespan);
    }
    CHECK(std::min({counts.moved, counts.above, counts.below, counts.undone}) > 200);
    if (c.shape.devices > 2) CHECK(counts.cycles > 50);
  }
}

}  // namespace pp::search
