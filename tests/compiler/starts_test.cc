// Plans to start from: the least memory is what it is said to be, and the order in which gradients
// are summed stays the given plan's.
#include "compiler/search/starts.h"

#include <catch2/catch.hpp>
#include <random>

#include "compiler/search/ledger.h"
#include "compiler/search/search.h"
#include "tests/scheme_problem.h"

namespace pp::search {
TEST_CASE("one micro-batch after the other takes no more memory than it says") {
  std::mt19937 random(3);
  for (const char* scheme : {"zb-v", "interleaved"})
    for (int n = 0; n < 50; ++n) {
      Problem problem =
          MakeSchemeProblem(scheme, {.devices = 2, .microbatches = 2, .stages_per_device = 2},
                            "in=0.1", 2)
              .problem;
      for (Held& held : problem.memory.held)
        for (int64_t* bytes : {&held.forward, &held.dropped, &held.recomputed, &held.input_half,
                               &held.recomputed_half})
          *bytes = 1 + random() % 100;
      const Thrifty thrifty = OneByOne(problem);
      for (int d = 0; d < problem.devices; ++d)
        CHECK(Peak(problem, thrifty.plan, d) <= thrifty.limit[d]);
    }
}

TEST_CASE("gradients that are summed last in, first out stay so, under the least limit, too") {
  for (const auto& [scheme, limit] : {std::pair{"gpipe", 1.0},
                                      {"gpipe", 1.2},
                                      {"gpipe", 3.0},
                                      {"hanayo", 0.6},
                                      {"hanayo", 0.7}}) {
    const Problem problem =
        MakeSchemeProblem(scheme, {.devices = 2, .microbatches = 3, .stages_per_device = 0},
                          "in=0.1", limit)
            .problem;
    Plan start;  // all forwards, then their mirror image
    start.dropped.assign(problem.cells(), 0);
    start.lists.resize(problem.devices);
    for (int d = 0; d < problem.devices; ++d) {
      auto& list = start.lists[d];
      for (int s = 0; s < problem.stages; ++s)
        for (int m = 0; m < problem.micros; ++m)
          if (problem.device[problem.Cell(s, m)] == d)
            list.push_back(MakeTask(problem.Cell(s, m), Part::kForward));
      for (size_t i = list.size(); i-- > 0;)
        list.push_back(MakeTask(CellOf(list[i]), Part::kBackward));
    }
    INFO(scheme << " limit " << limit);
    CHECK(OrderOfSums(problem, start) == std::vector{2, 1, 0});
    CHECK(SameWork(problem, Search(problem, {start}, {}).plan, start));
  }
}

}  // namespace pp::search
