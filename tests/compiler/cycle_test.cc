// A period of a plan, repeated, is the plan for more micro-batches; and what cannot be repeated is
// not.
#include "compiler/search/cycle.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "compiler/search/ledger.h"
#include "compiler/search/starts.h"
#include "compiler/search/steady.h"
#include "tests/scheme_problem.h"

namespace pp::search {
namespace {

SchemeProblem Make(const char* scheme, Shape shape, double limit = 1e6) {
  return MakeSchemeProblem(scheme, shape, "f=1,b=2,comm=0.25,in=0.1", limit);
}

// A period takes as long as lies between the backwards of its first micro-batch and of the next
// period's.
Plan Repeat(const SchemeProblem& few, int begin, int period, const Problem& to) {
  Clock clock(few.problem);
  clock.Earliest(few.plan);
  const auto start = [&](int m) {
    return clock.start(MakeTask(few.problem.Cell(0, m), Part::kBackward));
  };
  return RepeatInTime(few.problem, few.plan, clock, begin, period,
                      start(begin + period) - start(begin), to);
}

struct Case {
  const char* scheme;
  Shape few, many;
  int begin, period;
};

const Case kCases[] = {{"1f1b", {4, 12}, {4, 31}, 5, 1},
                       {"1f1b", {3, 11}, {3, 19}, 4, 2},
                       {"zb-h1", {4, 16}, {4, 40}, 6, 1},
                       {"interleaved", {2, 12, 2}, {2, 28, 2}, 4, 2}};

}  // namespace

TEST_CASE("a period repeated is the scheme with more micro-batches") {
  for (const Case& c : kCases) {
    INFO(c.scheme << " period " << c.period);
    const SchemeProblem few = Make(c.scheme, c.few), many = Make(c.scheme, c.many);
    const Plan in_time = Repeat(few, c.begin, c.period, many.problem);
    CHECK(in_time.lists == many.plan.lists);
    const auto in_order =
        RepeatInOrder(few.problem, few.plan, {c.begin, c.period, 3}, many.problem);
    REQUIRE(in_order);
    CHECK(in_order->lists == many.plan.lists);
  }
}

TEST_CASE("recomputes are repeated with their micro-batch") {
  SchemeProblem few = Make("1f1b", {2, 9}), many = Make("1f1b", {2, 30});
  few.plan = DropAll(few.plan);
  const Plan dropped = DropAll(many.plan);
  const auto repeated = RepeatInOrder(few.problem, few.plan, {2, 1, 3}, many.problem);
  REQUIRE(repeated);
  CHECK(repeated->lists == dropped.lists);
  CHECK(repeated->dropped == dropped.dropped);
  CHECK(Repeat(few, 3, 1, many.problem).dropped == dropped.dropped);
}

TEST_CASE("where tasks from elsewhere stand in the period nothing is repeated") {
  SchemeProblem few = Make("1f1b", {2, 9});
  const SchemeProblem many = Make("1f1b", {2, 20});
  const Cycle cycle{2, 1, 3};
  REQUIRE(RepeatInOrder(few.problem, few.plan, cycle, many.problem));
  // The last forward of the second device, before the period's first task.
  auto& list = few.plan.lists[1];
  const Task last = MakeTask(few.problem.Cell(1, 8), Part::kForward);
  const Task first = MakeTask(few.problem.Cell(1, 3), Part::kForward);
  list.erase(std::find(list.begin(), list.end(), last));
  list.insert(std::find(list.begin(), list.end(), first) + 1, last);
  CHECK(!RepeatInOrder(few.problem, few.plan, cycle, many.problem));
}

TEST_CASE("selected micro-batches are the scheme with as many, and come back") {
  const SchemeProblem few = Make("1f1b", {3, 5}), many = Make("1f1b", {3, 12});
  std::vector<int> all = AsTheyBegin(many.problem, many.plan);
  CHECK(std::is_sorted(all.begin(), all.end()));
  const Selection first(many.problem, {all.begin(), all.begin() + 5});
  CHECK(first.problem().source == few.problem.source);
  CHECK(first.problem().sink == few.problem.sink);
  CHECK(first.problem().device == few.problem.device);
  CHECK(first.problem().time == few.problem.time);
  CHECK(first.Select(many.plan).lists == few.plan.lists);
  std::reverse(all.begin(), all.end());
  const Selection reversed(many.problem, all);
  CHECK(reversed.Select(many.plan).lists != many.plan.lists);
  CHECK(reversed.Original(reversed.Select(many.plan)).lists == many.plan.lists);
}

TEST_CASE("plans for the steady state fit, and do the scheme's work") {
  struct Limited {
    const char* scheme;
    Shape shape;
    double limit;
  };
  for (const Limited& c : {Limited{"interleaved", {4, 132, 2}, 3.2},
                           Limited{"zb-v", {4, 129, 2}, 2}, Limited{"chimera", {4, 256}, 2.5}}) {
    INFO(c.scheme);
    const SchemeProblem scheme = Make(c.scheme, c.shape, c.limit);
    REQUIRE(HasSteadyState(scheme.problem));
    const auto plans = SteadyPlans(scheme.problem, {scheme.plan}, scheme.plan, 0.1);
    CHECK(!plans.empty());
    for (const Plan& plan : plans) {
      CHECK(Fits(scheme.problem, plan));
      CHECK(SameWork(scheme.problem, plan, scheme.plan));
      CHECK(Clock(scheme.problem).Earliest(plan) != kNever);
    }
  }
}

}  // namespace pp::search
