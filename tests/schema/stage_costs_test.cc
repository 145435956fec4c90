// Costs of stages in a file: what they are for a program, and what is wrong with them.
#include "schema/format/stage_costs.h"

#include <catch2/catch.hpp>
#include <string>

#include "compiler/machine/fit.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

std::string ErrorOf(const std::string& json, const Program& program) {
  const auto read = ParseStageCosts(json);
  const auto costs = read.ok() ? CostsOfStages(*read, program) : read;
  return costs.ok() ? "right: " + ToText(Compact(*costs)) : costs.status().message();
}

}  // namespace

TEST_CASE("costs of stages in a file") {
  // Two stages on each device: as costs of a whole device times count twice, all else once.
  const Program program = MustCompile({.scheme = "interleaved", .shape = {2, 2, 2}});
  CHECK(ErrorOf(R"({"costs": {"f": [0.5, 1, 1.5, 2], "b": 3, "step": 0.25, "comm": 0.125,
                              "bandwidth": 1e9, "stash": [1, 2, 3, 4.5], "act": 1048576},
                    "host": "any"})",
                program) ==
        "right: f=1s:2s:3s:4s,b=6s,comm=0.125s,bandwidth=1000000000B/s,step=0.5s,"
        "stash=1B:2B:3B:4.5B,act=1048576B");
  // Of halves alone the whole.
  CHECK(ErrorOf(R"({"costs": {"f": 1, "bi": [1, 2, 3, 4], "bw": 0.5}})", program) ==
        "right: f=2s,b=3s:5s:7s:9s,bi=2s:4s:6s:8s,bw=1s");
  CHECK(HasStageCosts(R"({"costs": 1})"));
  CHECK(!HasStageCosts(R"({"profile": 1})"));
  CHECK(!HasStageCosts("f=1"));
}

TEST_CASE("wrong costs of stages are errors") {
  const Program program = MustCompile({.scheme = "1f1b", .shape = {2, 2}});
  const auto with = [&](const std::string& more) {
    return ErrorOf(R"({"costs": {"f": 1, "b": 2, )" + more + "}}", program);
  };
  CHECK(with(R"("stash": [1, 2, 3])") == "stash has 3 numbers (1, or 2: one for each stage)");
  CHECK(with(R"("stash": [])") == "costs: stash: is an empty list (a number for each stage)");
  CHECK(with(R"("stash": [1, -1])") == "costs: stash: -1 is no number from 0 to 1e+12");
  CHECK(with(R"("stash": 1e13)") == "costs: stash: 10000000000000.0 is no number from 0 to 1e+12");
  CHECK(with(R"("stash": "40MiB")") == R"(costs: stash: "40MiB" is no number from 0 to 1e+12)");
  CHECK(with(R"("act": [1, null])") == "costs: act: null is no number from 0 to 1e+12");
  CHECK_THAT(with(R"("act": NaN)"), Catch::StartsWith("costs: act: "));
  CHECK_THAT(with(R"("latency": [[1], 2])"), Catch::StartsWith("costs: latency: [1] is no number"));
  CHECK_THAT(with(R"("memory": 1)"), Catch::StartsWith("costs: 'memory' is no cost (f, b, r,"));
  CHECK_THAT(ErrorOf(R"({"costs": {"b": 1}})", program), Catch::StartsWith("costs: f is missing"));
  CHECK_THAT(ErrorOf(R"({"costs": {"f": 1, "bi": 1}})", program),
             Catch::StartsWith("costs: b is missing"));
  for (const char* json : {R"({"costs": [1]})", R"([{"costs": {}}])", "{}", "", "1"})
    CHECK(!ParseStageCosts(json).ok());
}

}  // namespace pp
