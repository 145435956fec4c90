// How good fit-memory is and how long it takes on pipelines of any size. The gap is relative to a
// lower bound, which is itself some percent below the optimum in the middle of the memory range.
#include <fmt/format.h>

#include "compiler/compile.h"

namespace pp {
namespace {

struct Row {
  const char* scheme;
  int devices, microbatches;
  double limit;
};

constexpr Row kRows[] = {
    {"1f1b", 4, 16, 2},     {"1f1b", 8, 128, 3},   {"1f1b", 8, 128, 4},
    {"1f1b", 8, 128, 6},    {"1f1b", 16, 256, 8},  {"1f1b", 64, 1024, 8},
    {"1f1b", 64, 1024, 32}, {"chimera", 8, 32, 3}, {"interleaved", 8, 64, 3},
    {"zb-h1", 8, 64, 4},    {"zb-v", 8, 64, 4},    {"interleaved", 64, 1024, 16},
};

int Main() {
  fmt::print("{:<12} {:>3} {:>5} {:>6} {:>9} {:>10} {:>11} {:>8} {:>8}\n", "scheme", "D", "M",
             "limit", "kept all", "makespan", "lower bound", "gap", "seconds");
  for (const Row& row : kRows) {
    CompileOptions options{
        .scheme = row.scheme,
        .shape = {.devices = row.devices, .microbatches = row.microbatches, .stages_per_device = 0},
        .costs = "in=0.1"};
    FitReport report, free;
    double seconds = 0;
    const PassObserver observer{.end = [&](std::string_view name, const Program&, double taken) {
      if (name == "fit-memory") seconds = taken;
    }};
    options.fit = {.limit = {.values = {1.0 * row.microbatches}},
                   .report = [&](const FitReport& r) { free = r; }};
    Status status = Compile(options).status();
    options.fit = {.limit = {.values = {row.limit}},
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
  return 0;
}

}  // namespace
}  // namespace pp

int main() { return pp::Main(); }
