// How good fit-memory is and how long it takes on pipelines of any size. The gap is relative to a
// lower bound, which is itself some percent below the optimum in the middle of the memory range.
// Then, beside optima and beside the schedules of sail-sg's zero-bubble repository
// (tests/fit_tables.h; to be run where tests/reference is found).
//
//   bench_fit              all of that
//   bench_fit --slower     also each row of these tables that is slower, and by how much
//   bench_fit --limits N   instead: N random pipelines, each under two neighbouring limits of the
//                          grid (ten in an octave): more memory should never be slower
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <map>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "compiler/compile.h"
#include "compiler/passes/fit_memory.h"
#include "schema/base/background.h"
#include "schema/base/number.h"
#include "tests/fit_tables.h"

namespace pp {
namespace {

// Each table's rows beside what fit-memory finds.
Status Compare(const char* title, const Result<std::vector<FitRow>>& rows, Objective objective,
               bool slower) {
  const bool period = objective == Objective::kPeriod;
  if (!rows.ok()) return rows.status();
  struct Sum {
    int rows = 0, slower = 0;
    double gaps = 0, worst = -1, bounds = 0;
  };
  std::map<std::string, Sum> sums;
  for (const FitRow& row : *rows) {
    const Result<FitReport> report = Fit(row, objective);
    if (!report.ok()) return report.status();
    const double gap = report->makespan / (period ? row.span : row.makespan) - 1;
    if (slower && gap > 1e-4)
      fmt::print("{} {} D={} M={} V={} {} limit {}: {:+.2f} %, {:.2f} % above the bound\n",
                 row.table, row.scheme, row.devices, row.microbatches, row.stages_per_device,
                 row.costs, row.limit, gap * 100,
                 (report->makespan / *report->lower_bound - 1) * 100);
    Sum& sum = sums[row.table];
    ++sum.rows;
    sum.slower += gap > 1e-4;
    sum.gaps += gap;
    sum.worst = std::max(sum.worst, gap);
    sum.bounds += report->makespan / *report->lower_bound - 1;
  }
  fmt::print("\n{:<20} {:>5} {:>9} {:>9} {:>7} {:>13}\n", title, "rows", "mean", "worst", "slower",
             "above bound");
  for (const auto& [name, sum] : sums)
    fmt::print("{:<20} {:>5} {:>+7.3f} % {:>+7.2f} % {:>7} {:>11.1f} %\n", name, sum.rows,
               sum.gaps / sum.rows * 100, sum.worst * 100, sum.slower, sum.bounds / sum.rows * 100);
  return {};
}

// A random one, with room for half of its activations at least; false: there is none of its size.
bool DrawPipeline(std::mt19937_64& random, CompileOptions* options) {
  constexpr const char* kSchemes[] = {"1f1b",   "zb-h1",   "zb-v",   "interleaved",
                                      "v-half", "chimera", "hanayo", "fold-aiao"};
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  options->scheme = kSchemes[below(std::size(kSchemes))];
  options->shape = {.devices = 2 + below(5), .microbatches = 2 + below(15), .stages_per_device = 0};
  options->costs = fmt::format("f={},b={},comm={},in={}", 1 + below(3) * 0.5, 1.5 + below(4) * 0.5,
                               below(3) * 0.25, 0.05 + below(4) * 0.05);
  return Compile(*options).ok();
}

// A pipeline under a limit of the grid.
struct Limited {
  CompileOptions options;
  double limit = 0;
};

Limited Draw(std::mt19937_64& random) {
  Limited drawn;
  while (!DrawPipeline(random, &drawn.options)) drawn.options = {};
  const double most =
      drawn.options.shape.devices * (0.3 + 0.7 * static_cast<double>(random() % 100) / 100);
  drawn.limit = LimitBelow(std::min<double>(most, drawn.options.shape.microbatches));
  return drawn;
}

// The makespans under the next lower limit of the grid and under its own; fewer if it does not fit.
std::vector<double> FitBoth(Limited drawn) {
  std::vector<double> makespans;
  for (const double tried : {LimitBelow(drawn.limit), drawn.limit}) {
    drawn.options.fit = {.limit = {.values = {tried}}, .report = [&](const FitReport& report) {
                           makespans.push_back(report.makespan);
                         }};
    if (!Compile(drawn.options).ok()) break;
  }
  return makespans;
}

int CompareLimits(int pipelines) {
  std::mt19937_64 random(1);
  // Several for each processor, as they take very different times.
  const unsigned at_once = 4 * std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  int seen = 0, slower = 0;
  double worst = 0;
  while (seen < pipelines) {
    std::vector<std::pair<Limited, std::future<std::vector<double>>>> batch;
    for (unsigned i = 0; i < at_once; ++i) {
      const Limited drawn = Draw(random);
      batch.emplace_back(drawn, std::async(kInBackground, FitBoth, drawn));
    }
    for (auto& [drawn, future] : batch) {
      const std::vector<double> makespans = future.get();
      if (makespans.size() < 2 || seen == pipelines) continue;
      if (++seen % 50 == 0) fmt::print(stderr, "{} of {}, {} slower\n", seen, pipelines, slower);
      const double loss = makespans[1] / makespans[0] - 1;
      if (loss <= 1e-9) continue;
      ++slower;
      worst = std::max(worst, loss);
      fmt::print("{} D={} M={} {} limit {:g}: {:g}, under the limit before {:g}\n",
                 drawn.options.scheme, drawn.options.shape.devices,
                 drawn.options.shape.microbatches, drawn.options.costs, drawn.limit, makespans[1],
                 makespans[0]);
      std::fflush(stdout);
    }
  }
  fmt::print("{} random pipelines: {} slower with more memory, by {:.2f} % at most\n", pipelines,
             slower, worst * 100);
  return 0;
}

int Main(bool slower) {
  fmt::print("{:<12} {:>3} {:>5} {:>6} {:>9} {:>10} {:>11} {:>8} {:>8}\n", "scheme", "D", "M",
             "limit", "kept all", "makespan", "lower bound", "gap", "seconds");
  for (const FitRow& row : LargePipelines()) {
    CompileOptions options{
        .scheme = row.scheme,
        .shape = {.devices = row.devices, .microbatches = row.microbatches, .stages_per_device = 0},
        .costs = row.costs};
    FitReport report, free;
    double seconds = 0;
    const PassObserver observer{.end = [&](std::string_view name, const Program&, double taken) {
      if (name == "fit-memory") seconds = taken;
    }};
    options.fit = {.limit = {.values = {1.0 * row.microbatches}},
                   .report = [&](const FitReport& r) { free = r; }};
    Status status = Compile(options).status();
    options.fit = {.limit = *ParseMemoryLimit(row.limit),
                   .report = [&](const FitReport& r) { report = r; }};
    if (status.ok()) status = Compile(options, observer).status();
    if (!status.ok()) {
      fmt::print(stderr, "bench_fit: error: {}\n", status.message());
      return static_cast<int>(status.code());
    }
    fmt::print("{:<12} {:>3} {:>5} {:>6} {:>9g} {:>10g} {:>11.6g} {:>6.1f} % {:>8.2f}\n",
               row.scheme, row.devices, row.microbatches, row.limit, free.makespan, report.makespan,
               *report.lower_bound, (report.makespan / *report.lower_bound - 1) * 100, seconds);
  }
  Status status = Compare("optima", ReadOptima(), Objective::kStep, slower);
  if (status.ok()) status = Compare("sail-sg's", ReadPeers(), Objective::kStep, slower);
  if (status.ok()) status = Compare("from step to step", ReadPeers(), Objective::kPeriod, slower);
  if (!status.ok()) {
    fmt::print(stderr, "bench_fit: error: {}\n", status.message());
    return static_cast<int>(status.code());
  }
  return 0;
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  const std::string_view option = argc > 1 ? argv[1] : "";
  int pipelines = 0;
  if (argc == 3 && option == "--limits" && pp::ReadNumber(argv[2], &pipelines) && pipelines > 0)
    return pp::CompareLimits(pipelines);
  if (argc > 2 || (argc == 2 && option != "--slower")) {
    fmt::print(stderr, "usage: bench_fit [--slower | --limits N]\n");
    return 2;
  }
  return pp::Main(argc == 2);
}
