// A pipeline under a limit of memory, and what fit-memory promises of every plan: it is legal,
// fits, takes as long as is reported, and is not below the bound.
#pragma once

#include <string>

#include "compiler/compile.h"
#include "compiler/simulate.h"

namespace pp {

struct FitCase {
  std::string scheme;
  int devices, microbatches, stages_per_device;
  std::string costs, limit;  // as --costs and --memory-limit take them
  double optimum;            // 0: not known
};

struct Fitted {
  Program program;
  FitReport report;
};

// `quick`: no local search.
Fitted Fit(const FitCase& c, bool quick = false, search::Method without = search::Method::kNone);

// The most memory that a list holds, by the rules in compiler/README.md alone: a cell's memory by
// what has been done for it so far.
double PeakOf(const Program& program, const CostModel& costs, int device);

Prediction MustSimulate(const Program& program, const CostModel& costs);

// Checks what the pass promises, and that its bound is at most the optimum. Returns the makespan.
double CheckFit(const FitCase& c, bool quick = false);

}  // namespace pp
