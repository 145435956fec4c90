// fit-memory against tables: optima that an exact solver proved, and published schedules, in a step
// and from step to step. bench_fit does all of their rows.
#include "tests/fit_tables.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/check_fit.h"

namespace pp {
namespace {

struct Gaps {
  double sum = 0, largest = 0;
  int count = 0;
  void Add(const FitCase& c, double makespan) {
    const double gap = makespan / c.optimum - 1;
    sum += std::max(0.0, gap);
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

// Fits every so many rows of a table, which are near its optima: bench_fit does all.
void CheckTable(const std::string& table, int every) {
  Gaps gaps;
  const auto rows = ReadOptima();
  INFO(rows.status().message());
  REQUIRE(rows.ok());
  int left = 0;
  for (const FitRow& row : *rows)
    if (row.table == table && left-- == 0) {
      const FitCase c{row.scheme, row.devices, row.microbatches, row.stages_per_device,
                      row.costs,  row.limit,   row.makespan};
      gaps.Add(c, CheckFit(c));
      left = every - 1;
    }
  REQUIRE(gaps.count > 0);
  gaps.Print(table.c_str());
  CHECK(gaps.mean() <= 0.001);
  CHECK(gaps.largest <= 0.015);
}

}  // namespace

TEST_CASE("1F1B is as fast as the optimum under every limit, within a tenth of a percent") {
  CheckTable("1F1B", 6);
}

TEST_CASE("several stages a device, pipes and split backwards are near the optimum") {
  CheckTable("others", 3);
}

// Its optimum works in groups of three micro-batches, beside many plans in groups of four that are
// one step longer.
TEST_CASE("an optimum far from most good plans is found") {
  const auto rows = ReadOptima();
  REQUIRE(rows.ok());
  const auto row = std::find_if(rows->begin(), rows->end(), [](const FitRow& r) {
    return r.scheme == "interleaved" && r.microbatches == 8 && r.limit == "2";
  });
  REQUIRE(row != rows->end());
  const auto whole = Fit(*row, Objective::kStep, search::Method::kNone);
  REQUIRE(whole.ok());
  CHECK(whole->makespan <= row->makespan);
}

TEST_CASE("other costs and limits are near the optimum") { CheckTable("uneven", 2); }

TEST_CASE("as fast as published schedules under their memory") {
  const auto rows = ReadPeers();
  INFO(rows.status().message());
  REQUIRE(rows.ok());
  for (size_t i = 3; i < rows->size(); i += 26) {
    const FitRow& row = (*rows)[i];
    CHECK(CheckFit({row.scheme, row.devices, row.microbatches, row.stages_per_device, row.costs,
                    row.limit, 0}) <= row.makespan * (1 + 1e-4));
  }
}

Result<Program> CompileForPeriod(const FitRow& row, bool quick, FitReport* report,
                                 search::Method without = search::Method::kNone) {
  return Compile({.scheme = row.scheme,
                  .shape = {.devices = row.devices,
                            .microbatches = row.microbatches,
                            .stages_per_device = row.stages_per_device},
                  .clip = false,
                  .costs = row.costs,
                  .fit = {.limit = *ParseMemoryLimit(row.limit),
                          .objective = Objective::kPeriod,
                          .report = [report](const FitReport& r) { *report = r; },
                          .quick = quick,
                          .without = without}});
}

TEST_CASE("from step to step as fast as published schedules, and what is printed holds") {
  const auto rows = ReadPeers();
  REQUIRE(rows.ok());
  int below_step = 0;
  for (size_t i = 3; i < rows->size(); i += 26) {
    const FitRow& row = (*rows)[i];
    INFO(row.table << " D " << row.devices << " M " << row.microbatches << " limit " << row.limit);
    FitReport report;
    const auto program = CompileForPeriod(row, false, &report);
    REQUIRE(program.ok());
    const Prediction prediction = MustSimulate(*program, *ParseCosts(row.costs, program->stages));
    CHECK(prediction.period <= report.makespan * (1 + 1e-9));
    REQUIRE(report.lower_bound);
    CHECK(prediction.period >= *report.lower_bound * (1 - 1e-9));
    CHECK(prediction.period <= row.span * (1 + 1e-4));
    below_step += prediction.period < row.makespan * 0.99;
  }
  CHECK(below_step > 0);
}

// Where annealing found none of these in minutes: their weight halves lie otherwise.
TEST_CASE("without local search, too, ZB-V is from step to step as fast as published schedules") {
  const auto rows = ReadPeers();
  REQUIRE(rows.ok());
  int compared = 0, slower = 0;
  for (const FitRow& row : *rows) {
    if (row.scheme != "zb-v" || row.table.substr(0, 4) != "zb-v") continue;
    INFO(row.table << " D " << row.devices << " M " << row.microbatches);
    FitReport report;
    REQUIRE(CompileForPeriod(row, true, &report).ok());
    CHECK(report.makespan <= row.span * (1 + 1e-4));
    ++compared;
    // It is that method which makes them so.
    REQUIRE(CompileForPeriod(row, true, &report, search::Method::kPlaceWeights).ok());
    slower += report.makespan > row.span * (1 + 1e-4);
  }
  CHECK(compared == 24);
  CHECK(slower > 12);
}

TEST_CASE("each method of the local search can be left out") {
  const auto rows = ReadOptima();
  REQUIRE(rows.ok());
  const auto row = std::find_if(rows->begin(), rows->end(), [](const FitRow& r) {
    return r.table == "uneven" && r.scheme == "interleaved" && r.limit == "1.9:1.3";
  });
  REQUIRE(row != rows->end());
  for (int method = static_cast<int>(search::Method::kVary);
       method <= static_cast<int>(search::Method::kPolicy); ++method) {
    const auto report = Fit(*row, Objective::kStep, static_cast<search::Method>(method));
    REQUIRE(report.ok());
    CHECK(report->makespan >= *report->lower_bound * (1 - 1e-9));
    CHECK(report->makespan <= row->makespan * 1.05);
  }
}

}  // namespace pp
