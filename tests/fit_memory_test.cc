// fit-memory against optima that an exact solver proved, and against its own promises on pipelines
// of many kinds: the plan is legal, fits, takes as long as it says, and no longer than the input.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <map>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/verify.h"

namespace pp {
namespace {

struct Case {
  std::string scheme;
  int devices, microbatches, stages_per_device;
  std::string costs, limit;
  double optimum;  // 0: not known
};

struct Fitted {
  Program program;
  FitReport report;
};

Fitted Fit(const Case& c) {
  CompileOptions options{.scheme = c.scheme,
                         .shape = {.devices = c.devices,
                                   .microbatches = c.microbatches,
                                   .stages_per_device = c.stages_per_device},
                         .costs = c.costs};
  const auto limit = ParseMemoryLimit(c.limit);
  REQUIRE(limit.ok());
  FitReport report;
  options.fit = {.limit = *limit, .report = [&](const FitReport& r) { report = r; }};
  auto program = Compile(options);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return {*program, report};
}

// The most memory that a list holds, by the rules in README alone: a cell's memory by what has been
// done for it so far.
double PeakOf(const Program& program, const CostModel& costs, int device) {
  std::map<std::pair<int, int>, double> held;
  const double share = program.Shares()[program.StagesOf(device).front()];
  double level = 0, peak = 0;
  for (const Instruction& i : program.lists[device].body) {
    double& cell = held[{i.stage, i.micro}];
    if (i.op == Op::kForward || i.op == Op::kRecompute) {
      cell += share;
      level += share;
    }
    if (i.op == Op::kForwardDrop) {
      cell += At(costs.in, i.stage);
      level += At(costs.in, i.stage);
    }
    peak = std::max(peak, level);
    if (i.op == Op::kBackward || i.op == Op::kBackwardWeight) level -= cell;
  }
  return peak;
}

Prediction MustSimulate(const Program& program, const CostModel& costs) {
  std::vector<WaitsFor> waits_for;
  REQUIRE(Verify(program, Depth::kPlan, &waits_for).message() == "");
  const auto prediction = Simulate(program, waits_for, costs);
  REQUIRE(prediction.ok());
  return *prediction;
}

// Checks what the pass guarantees for every plan. Returns the makespan.
double CheckFit(const Case& c) {
  INFO(c.scheme << " D " << c.devices << " M " << c.microbatches << " " << c.costs << " limit "
                << c.limit);
  const Fitted fitted = Fit(c);
  const CostModel costs = *ParseCosts(c.costs, fitted.program.stages);
  const std::vector<double> limits = ParseMemoryLimit(c.limit)->values;
  for (int d = 0; d < c.devices; ++d) {
    const double peak = PeakOf(fitted.program, costs, d);
    CHECK(peak <= At(limits, d) + 1e-6);
    CHECK(fitted.report.peaks[d] == Approx(peak));
  }
  const Prediction prediction = MustSimulate(fitted.program, costs);
  const double makespan = prediction.makespan;
  CHECK(makespan == Approx(fitted.report.makespan));
  for (int d = 0; d < c.devices; ++d)
    CHECK(prediction.devices[d].peak_with_inputs == Approx(fitted.report.peaks[d]));
  REQUIRE(fitted.report.lower_bound);
  CHECK(makespan >= *fitted.report.lower_bound - 1e-9);
  if (c.optimum > 0) CHECK(*fitted.report.lower_bound <= c.optimum + 1e-9);
  return makespan;
}

struct Gaps {
  double sum = 0, largest = 0;
  int count = 0;
  void Add(const Case& c, double makespan) {
    const double gap = makespan / c.optimum - 1;
    sum += gap;
    largest = std::max(largest, gap);
    ++count;
    if (gap != 0)
      std::printf("%s D %d M %d limit %s: %g, best known %g (%+.1f %%)\n", c.scheme.c_str(),
                  c.devices, c.microbatches, c.limit.c_str(), makespan, c.optimum, gap * 100);
  }
  double mean() const { return sum / count; }
  void Print(const char* name) const {
    std::printf("%s: %d cases, mean gap %.3f %%, largest %.2f %%\n", name, count, mean() * 100,
                largest * 100);
  }
};

// D, M -> limit, optimum: proved for plans in which all stages keep one order of micro-batches,
// best known if another order is faster. f=1, b=2, in=0.1.
struct Optima {
  int devices, microbatches;
  std::vector<std::pair<const char*, double>> optima;
};
const Optima kOneFOneB[] = {
    {2, 2, {{"1", 12}, {"1.1", 9}, {"1.2", 9}, {"1.5", 9}, {"2", 9}}},
    {2, 4, {{"1", 24}, {"1.1", 18}, {"1.2", 16}, {"1.3", 15}, {"1.5", 15}, {"2", 15}}},
    {3,
     6,
     {{"1", 54},
      {"1.1", 36},
      {"1.2", 30},
      {"1.3", 26},
      {"1.4", 26},
      {"1.5", 26},
      {"1.6", 26},
      {"1.7", 26},
      {"1.8", 26},
      {"1.9", 26},
      {"2", 24},
      {"2.5", 24},
      {"3", 24}}},
    {4,
     4,
     {{"1.1", 30},
      {"1.2", 27},
      {"1.3", 21},
      {"1.4", 21},
      {"1.5", 21},
      {"2", 21},
      {"2.5", 21},
      {"3", 21},
      {"4", 21}}},
    {4,
     8,
     {{"1.2", 49},
      {"1.3", 40},
      {"1.4", 37},
      {"1.5", 37},
      {"1.6", 36},
      {"1.7", 36},
      {"1.8", 36},
      {"2", 34},
      {"2.1", 34},
      {"2.2", 34},
      {"2.3", 33},
      {"2.4", 33},
      {"2.5", 33},
      {"3", 33},
      {"3.5", 33},
      {"4", 33}}},
    {4,
     16,
     {{"1.3", 77},
      {"1.4", 69},
      {"1.5", 69},
      {"1.6", 67},
      {"1.8", 66},
      {"2", 65},
      {"2.5", 61},
      {"3", 58},
      {"3.5", 57},
      {"3.6", 57},
      {"3.7", 57},
      {"3.8", 57},
      {"3.9", 57},
      {"4", 57}}},
    {8,
     8,
     {{"1.3", 66},
      {"1.4", 59},
      {"1.5", 55},
      {"1.6", 51},
      {"1.8", 48},
      {"2", 46},
      {"2.1", 46},
      {"2.2", 46},
      {"2.3", 45},
      {"2.4", 45},
      {"2.5", 45},
      {"3", 45},
      {"3.5", 45},
      {"4", 45},
      {"5", 45},
      {"6", 45},
      {"8", 45}}},
    {8, 16, {{"1.5", 95}, {"2", 78}, {"3", 72}, {"4", 69}, {"6", 69}, {"8", 69}}},
};

// Schemes with several stages per device (whose stages take f=1, b=2 each), pipes or halves.
const Case kOthers[] = {
    {"gpipe", 4, 4, 1, "in=0.1", "4", 21},
    {"gpipe", 4, 4, 1, "in=0.1", "1.3", 21},
    {"chimera", 4, 4, 1, "in=0.1", "4", 16},
    {"chimera", 4, 4, 1, "in=0.1", "2.2", 18},
    {"chimera", 4, 4, 1, "in=0.1", "1.3", 19},
    {"chimera", 4, 8, 1, "in=0.1", "8", 27},
    {"chimera", 4, 8, 1, "in=0.1", "4", 28},
    {"chimera", 4, 8, 1, "in=0.1", "3", 30},
    {"chimera", 4, 8, 1, "in=0.1", "1.4", 34},
    {"interleaved", 4, 4, 2, "f=2,b=4,in=0.1", "3", 33},
    {"interleaved", 4, 4, 2, "f=2,b=4,in=0.1", "2", 35},
    {"interleaved", 4, 4, 2, "f=2,b=4,in=0.1", "1.5", 36},
    {"interleaved", 4, 8, 2, "f=2,b=4,in=0.1", "3", 57},
    {"interleaved", 4, 8, 2, "f=2,b=4,in=0.1", "2", 62},
    {"interleaved", 4, 8, 2, "f=2,b=4,in=0.1", "1.5", 66},
    {"interleaved", 2, 4, 2, "f=2,b=4,in=0.1", "2", 27},
    {"interleaved", 2, 4, 2, "f=2,b=4,in=0.1", "1.5", 28},
    {"interleaved", 2, 4, 2, "f=2,b=4,in=0.1", "1", 31},
    {"zb-h1", 2, 4, 1, "in=0.1", "1.1", 16},
    {"zb-h1", 2, 4, 1, "in=0.1", "1.3", 15},
    {"zb-h1", 2, 4, 1, "in=0.1", "2", 13},
    {"zb-h1", 4, 4, 1, "in=0.1", "1.2", 21},
    {"zb-h1", 4, 4, 1, "in=0.1", "1.3", 19},
    {"zb-h1", 4, 4, 1, "in=0.1", "2", 18},
    {"zb-h1", 4, 4, 1, "in=0.1", "2.5", 17},
    {"zb-h1", 4, 4, 1, "in=0.1", "3", 17},
    {"zb-h1", 4, 4, 1, "in=0.1", "4", 15},
    {"zb-h1", 4, 8, 1, "in=0.1", "1.4", 34},
    {"zb-h1", 4, 8, 1, "in=0.1", "2", 33},
    {"zb-h1", 4, 8, 1, "in=0.1", "2.5", 29},
    {"zb-h1", 4, 8, 1, "in=0.1", "3", 29},
    {"zb-h1", 4, 8, 1, "in=0.1", "3.5", 28},
    {"zb-h1", 4, 8, 1, "in=0.1", "4", 27},
};

// Uneven stages, slow recomputes, communication, a limit for each device: drawn at random, and
// proved for plans that take the backwards of a stage in order.
const Case kUneven[] = {
    {"1f1b", 2, 6, 1, "f=2:1,b=4:2,r=2:1,comm=0.25,in=0.1", "1.4", 44},
    {"1f1b", 3, 6, 1, "f=1,b=2,r=1,in=0.1", "2.6", 24},
    {"1f1b", 3, 6, 1, "f=1:1.5:1.5,b=2:2.25:3,r=1:1.5:1.5,in=0.2", "2.2", 33.75},
    {"1f1b", 4, 4, 1, "f=1.5:1.5:1.5:2,b=3:2.25:2.25:4,r=2.25:1.5:1.5:2,in=0.1", "1.2:2.7:3.8:2.2",
     42},
    {"chimera", 4, 4, 1, "f=1,b=2,r=1:1:1:1.5,comm=0.5,in=0.1", "1.7:3.1:1.3:1.8", 21.5},
    {"chimera", 4, 6, 1, "f=1,b=2,r=1.5:1.5:1:1,comm=0.25,in=0.2", "3.4", 24.75},
    {"chimera", 4, 6, 1, "f=1,b=2,r=1.5:1:1:1.5,comm=0.5,in=0.2", "1.4:2.5:1.6:2", 30.5},
    {"chimera", 4, 6, 1, "f=1.5:1:1.5:1,b=3:2:3:1.5,r=1.5:1:2.25:1,comm=0.5,in=0.2", "1.7", 37},
    {"interleaved", 2, 4, 2, "f=1.5:2:1:1,b=3:4:1.5:2,r=1.5:2:1.5:1,comm=0.5,in=0.2", "1.9:1.3",
     23.5},
    {"interleaved", 3, 6, 2, "f=1,b=2,r=1.5:1.5:1.5:1:1:1,comm=0.5,in=0.05", "2.3:1.1:2.1", 27.5},
    {"zb-h1", 2, 6, 1, "f=1,b=2,r=1:1.5,comm=0.5,in=0.1", "1.6:1.9", 23},
    {"zb-h1", 2, 6, 1, "f=1:2,b=2:3,r=1:2,in=0.05", "1.8", 31.5},
    {"zb-h1", 4, 4, 1, "f=1.5:1:1:2,b=3:2:2:3,r=2.25:1.5:1.5:2,in=0.1", "2.1:4:3.4:2.1", 25.5},
    {"zb-h1", 4, 5, 1, "f=2:1:1.5:2,b=4:2:3:4,r=3:1:1.5:2,comm=0.25,in=0.1", "2.3", 40.5},
    {"zb-v", 2, 4, 2, "f=1:1.5:1.5:1.5,b=1.5:3:3:2.25,r=1:1.5:2.25:1.5,comm=0.25,in=0.1", "1.8:1.1",
     22.25},
    {"zb-v", 2, 4, 2, "f=2:1.5:1.5:2,b=3:3:3:4,r=2:1.5:1.5:2,comm=0.5,in=0.1", "1.1", 26},
};

}  // namespace

TEST_CASE("1F1B is as fast as the optimum under every limit, within a tenth of a percent") {
  Gaps gaps;
  for (const Optima& row : kOneFOneB)
    for (const auto& [limit, optimum] : row.optima) {
      const Case c{"1f1b", row.devices, row.microbatches, 1, "in=0.1", limit, optimum};
      gaps.Add(c, CheckFit(c));
    }
  gaps.Print("1F1B");
  CHECK(gaps.mean() <= 0.001);
  CHECK(gaps.largest <= 0.015);
}

TEST_CASE("several stages a device, pipes and split backwards are near the optimum") {
  Gaps gaps;
  for (const Case& c : kOthers) gaps.Add(c, CheckFit(c));
  gaps.Print("others");
  CHECK(gaps.mean() <= 0.002);
  CHECK(gaps.largest <= 0.035);
}

TEST_CASE("other costs and limits are near the optimum") {
  Gaps gaps;
  for (const Case& c : kUneven) gaps.Add(c, CheckFit(c));
  gaps.Print("uneven");
  CHECK(gaps.mean() <= 0.005);
  CHECK(gaps.largest <= 0.03);
}

TEST_CASE("never slower than Mario's passes under the memory that those take") {
  for (const char* scheme : {"1f1b", "chimera", "interleaved"})
    for (const char* costs : {"in=0.1", "b=1.5,in=0.05", "f=1,b=3,r=1.5,in=0.1"}) {
      CompileOptions options{.scheme = scheme,
                             .shape = {.devices = 4, .microbatches = 12, .stages_per_device = 0},
                             .passes = "mario",
                             .costs = costs};
      const auto mario = Compile(options);
      REQUIRE(mario.ok());
      const CostModel model = *ParseCosts(costs, mario->stages);
      std::string limit;
      for (int d = 0; d < 4; ++d)
        limit += (d > 0 ? ":" : "") + std::to_string(PeakOf(*mario, model, d));
      const double makespan = MustSimulate(*mario, model).makespan;
      CHECK(CheckFit({scheme, 4, 12, 0, costs, limit, 0}) <= makespan + 1e-9);
    }
}

TEST_CASE("four devices, four micro-batches: no slower with one activation than with four") {
  const Fitted fitted = Fit({"1f1b", 4, 4, 1, "in=0.1", "1.3", 21});
  CHECK(fitted.report.makespan == 21);
  CHECK(fitted.report.lower_bound == 21);
  for (double peak : fitted.report.peaks) CHECK(peak <= 1.3 + 1e-9);
}

// By stage and pipe: the micro-batches in the order in which their weight gradients are added.
std::map<std::pair<int, int>, std::vector<int>> SumsOf(const Program& program) {
  std::map<std::pair<int, int>, std::vector<int>> sums;
  for (const DeviceList& list : program.lists)
    for (const Instruction& i : list.body)
      if (i.op == Op::kBackward || i.op == Op::kBackwardWeight)
        sums[{i.stage, program.pipe_of[i.micro]}].push_back(i.micro);
  return sums;
}

TEST_CASE("gradients are summed in the order of the scheme, so that the bits stay") {
  for (const Case& c : std::vector<Case>{{"dualpipe-v", 3, 6, 0, "", "3", 0},
                                         {"dualpipe-v", 3, 6, 0, "f=1,b=3", "2", 0},
                                         {"dualpipe-v", 2, 8, 0, "in=0.1", "1.5", 0},
                                         {"dualpipe", 4, 8, 0, "in=0.1", "2", 0},
                                         {"zb-v", 3, 6, 0, "in=0.1", "1.5", 0},
                                         {"zb-h2", 3, 6, 0, "in=0.1", "2", 0},
                                         {"v-min", 3, 6, 0, "in=0.1", "1", 0},
                                         {"chimera", 4, 8, 0, "in=0.1", "2", 0},
                                         {"interleaved", 3, 6, 0, "in=0.1", "1.2", 0}}) {
    INFO(c.scheme << " D " << c.devices << " " << c.costs << " limit " << c.limit);
    const auto plain = Compile(
        {.scheme = c.scheme,
         .shape = {.devices = c.devices, .microbatches = c.microbatches, .stages_per_device = 0},
         .costs = c.costs});
    REQUIRE(plain.ok());
    CHECK(SumsOf(Fit(c).program) == SumsOf(*plain));
  }
}

TEST_CASE("where overlapping pairs save time nothing is proved") {
  const Fitted fitted = Fit({"dualpipe-v", 2, 8, 0, "f=1,b=2,fb=2", "8", 0});
  CHECK(fitted.report.makespan == 19);
  CHECK(!fitted.report.lower_bound);
  CHECK(Fit({"dualpipe-v", 2, 8, 0, "f=1,b=2,fb=3", "8", 0}).report.lower_bound);
}

// The makespans of sail-sg's own schedules (github.com/sail-sg/zero-bubble-pipeline-parallelism)
// under the memory that they take, where F, I and W of half a device take half a unit each.
TEST_CASE("as fast as published schedules under their memory") {
  const Case cases[] = {
      {"zb-v", 4, 8, 2, "in=1,b=2", "4", 25.5},   {"v-half", 4, 8, 2, "in=1,b=2", "3", 26.5},
      {"v-min", 4, 8, 2, "in=1,b=2", "2", 29.5},  {"v-half", 6, 18, 2, "in=1,b=2", "4", 59.5},
      {"v-min", 6, 18, 2, "in=1,b=2", "3", 62.5}, {"v-half", 8, 16, 2, "in=1,b=2", "5", 56.5}};
  for (const Case& c : cases) CHECK(CheckFit(c) <= c.optimum * (1 + 1e-4));
}

TEST_CASE("schemes with the same work are equally fast under a limit") {
  for (const char* limit : {"1.4", "2", "3"}) {
    std::vector<double> makespans;
    for (const char* scheme : {"zb-v", "v-half", "v-min"})
      makespans.push_back(CheckFit({scheme, 4, 8, 2, "in=0.1", limit, 0}));
    std::sort(makespans.begin(), makespans.end());
    CHECK(makespans.back() <= makespans.front() * 1.005);
  }
}

TEST_CASE("a plan that fits is never made slower") {
  for (const char* scheme : {"gpipe", "1f1b", "interleaved", "chimera", "zb-h2", "zb-v", "hanayo"})
    for (const char* costs : {"in=0.1", "f=1,b=1.5,comm=0.25", "f=0,b=1", "f=1,b=0"}) {
      const Case c{scheme, 4, 8, 0, costs, "8", 0};
      const auto plain =
          Compile({.scheme = scheme,
                   .shape = {.devices = 4, .microbatches = 8, .stages_per_device = 0},
                   .costs = costs});
      REQUIRE(plain.ok());
      const CostModel model = *ParseCosts(costs, plain->stages);
      CHECK(CheckFit(c) <= MustSimulate(*plain, model).makespan + 1e-9);
    }
}

TEST_CASE("uneven stages, slow recomputes, communication and a limit for each device") {
  double before = 0;
  for (const char* limit : {"1.2", "1.5", "2", "2.5:2:2:1", "3", "4"}) {
    const Case c{"1f1b", 4, 8, 1, "f=1:1.5:1:2,b=2:3:2:4,r=1.5,comm=0.25,in=0.1", limit, 0};
    const double makespan = CheckFit(c);
    if (before > 0 && std::string_view(limit).find(':') == std::string_view::npos)
      CHECK(makespan <= before + 1e-9);
    before = makespan;
  }
}

TEST_CASE("the least limit is named, and is enough") {
  // Two stages of a device: the first one's input, and one stage's activation.
  CompileOptions options{
      .scheme = "interleaved", .shape = {.devices = 2, .microbatches = 4}, .costs = "in=0.1"};
  options.fit.limit = *ParseMemoryLimit("0.7:0.5");
  options.shape.stages_per_device = 2;
  CHECK(Compile(options).status().message() ==
        "--memory-limit: 0.5 is too little for device 1 (0.6 is the least that fits)");
  CheckFit({"interleaved", 2, 4, 2, "in=0.1", "0.6", 0});
  CheckFit({"1f1b", 4, 4, 1, "in=0.1", "1", 0});
  CheckFit({"chimera", 4, 8, 1, "in=0.1", "1", 0});
  CheckFit({"zb-v", 4, 8, 2, "in=0.1", "0.6", 0});
}

TEST_CASE("a limit or an input beyond all measure") {
  CheckFit({"1f1b", 4, 8, 1, "in=0.1", "8", 33});
  const Fitted fitted = Fit({"1f1b", 4, 8, 1, "in=1e15", "2", 0});
  for (const DeviceList& list : fitted.program.lists)
    for (const Instruction& i : list.body) CHECK(i.op != Op::kForwardDrop);
}

TEST_CASE("the same input gives the same plan") {
  const Case c{"1f1b", 4, 8, 1, "in=0.1", "2", 0};
  CHECK(Fit(c).program == Fit(c).program);
}

}  // namespace pp
