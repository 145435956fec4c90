// Makespans under limits of memory that fit-memory has to reach, for its test and its benchmark.
#pragma once

#include <string>
#include <vector>

#include "compiler/compile.h"
#include "schema/base/status.h"

namespace pp {

struct FitRow {
  std::string table, scheme;
  int devices = 0, microbatches = 0, stages_per_device = 0;
  std::string costs, limit;  // as --costs and --memory-limit take them
  double makespan = 0;       // 0: not known
  double span = 0;  // the longest time from a device's first instruction to its last; 0: not known
};

// tests/reference/optima.csv: found by an exact solver. "1F1B" is proved for plans in which all
// stages keep one order of micro-batches, and the best known if another order is faster; "others"
// and "uneven" (stages, recomputes, messages and limits drawn at random) are proved for plans that
// take the backwards of a stage in order, by tests/reference/optimal.py; but of interleaved, D=4
// M=8, under 2 and 1.5 the best known are given.
Result<std::vector<FitRow>> ReadOptima();

// tests/reference/zb_peers.csv: what the schedulers of sail-sg's zero-bubble repository make, under
// the memory that those schedules take. A table is one scheduler with one set of costs.
Result<std::vector<FitRow>> ReadPeers();

// Pipelines of any size, up to 64 x 1024.
std::vector<FitRow> LargePipelines();

// What fit-memory reports of a row's pipeline.
Result<FitReport> Fit(const FitRow& row, Objective objective,
                      search::Method without = search::Method::kNone);

}  // namespace pp
