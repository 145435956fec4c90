#include "tests/fit_tables.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "compiler/csv.h"

namespace pp {
namespace {

using Cells = std::map<std::string, std::string>;  // by their column's name

Result<std::vector<Cells>> Read(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) return Status::Invalid(path + ": cannot be read");
  CsvReader reader(text, path);
  std::vector<std::string> names;
  std::vector<Cells> rows;
  std::string cell;
  for (;;) {
    const Result<bool> more = reader.Next(&cell);
    if (!more.ok()) return more.status();
    if (!*more) return rows;
    if (reader.row() == 1) {
      names.push_back(cell);
      continue;
    }
    if (reader.column() == 1) rows.emplace_back();
    rows.back()[names.at(reader.column() - 1)] = cell;
  }
}

FitRow RowOf(const Cells& cells) {
  const auto whole = [&](const char* name) { return std::atoi(cells.at(name).c_str()); };
  return {.devices = whole("devices"),
          .microbatches = whole("microbatches"),
          .stages_per_device = whole("stages_per_device")};
}

}  // namespace

Result<std::vector<FitRow>> ReadOptima() {
  const auto read = Read("tests/reference/optima.csv");
  if (!read.ok()) return read.status();
  std::vector<FitRow> rows;
  for (const Cells& cells : *read) {
    FitRow row = RowOf(cells);
    row.table = cells.at("table");
    row.scheme = cells.at("scheme");
    row.costs = cells.at("costs");
    row.limit = cells.at("limit");
    row.makespan = std::atof(cells.at("optimum").c_str());
    rows.push_back(row);
  }
  return rows;
}

Result<std::vector<FitRow>> ReadPeers() {
  const auto read = Read("tests/reference/zb_peers.csv");
  if (!read.ok()) return read.status();
  std::vector<FitRow> rows;
  for (const Cells& cells : *read) {
    FitRow row = RowOf(cells);
    const std::string& peer = cells.at("peer");
    row.table = peer + " " + cells.at("costs");
    row.scheme = peer == "v-half" || peer == "v-min" || peer == "zb-v" ? peer : "zb-h1";
    // Theirs are of a stage, ours of all of a device's stages.
    const auto cost = [&](const char* name) {
      return row.stages_per_device * std::atof(cells.at(name).c_str());
    };
    row.costs = fmt::format("f={},b={},bi={},bw={},latency={},in=1", cost("f"),
                            cost("i") + cost("w"), cost("i"), cost("w"), cells.at("latency"));
    row.limit = cells.at("peak");
    row.makespan = std::atof(cells.at("makespan").c_str());
    row.span = std::atof(cells.at("span").c_str());
    rows.push_back(row);
  }
  return rows;
}

std::vector<FitRow> LargePipelines() {
  struct Size {
    const char* scheme;
    int devices, microbatches, limit;
  };
  constexpr Size kSizes[] = {
      {"1f1b", 4, 16, 2},     {"1f1b", 8, 128, 3},    {"1f1b", 8, 128, 4},
      {"1f1b", 8, 128, 6},    {"1f1b", 16, 256, 8},   {"1f1b", 64, 1024, 8},
      {"1f1b", 64, 1024, 32}, {"chimera", 8, 32, 3},  {"interleaved", 8, 64, 3},
      {"zb-h1", 8, 64, 4},    {"zb-v", 8, 64, 4},     {"interleaved", 64, 1024, 16},
      {"zb-v", 8, 1024, 3},   {"hanayo", 8, 1024, 4}, {"interleaved", 8, 1024, 8},
      {"zb-h1", 8, 1024, 6},
  };
  std::vector<FitRow> rows;
  for (const Size& size : kSizes)
    rows.push_back({.table = "large",
                    .scheme = size.scheme,
                    .devices = size.devices,
                    .microbatches = size.microbatches,
                    .costs = "in=0.1",
                    .limit = std::to_string(size.limit)});
  return rows;
}

Result<FitReport> Fit(const FitRow& row, Objective objective, search::Method without) {
  const auto limit = ParseMemoryLimit(row.limit);
  if (!limit.ok()) return limit.status();
  FitReport report;
  const Result<Program> program = Compile({.scheme = row.scheme,
                                           .shape = {.devices = row.devices,
                                                     .microbatches = row.microbatches,
                                                     .stages_per_device = row.stages_per_device},
                                           .clip = objective != Objective::kPeriod,
                                           .costs = row.costs,
                                           .fit = {.limit = *limit,
                                                   .objective = objective,
                                                   .report = [&](const auto& r) { report = r; },
                                                   .without = without}});
  if (!program.ok()) return program.status();
  return report;
}

}  // namespace pp
