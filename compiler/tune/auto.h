// pipec compile --scheme auto: the fastest scheme for given devices, costs and limit.
#pragma once

#include <string>
#include <vector>

#include "compiler/compile.h"
#include "schema/base/status.h"

namespace pp {

struct Chosen {
  Program program;
  struct Row {
    std::string scheme;
    double makespan;
    std::string_view unit;
  };
  std::vector<Row> compared;  // fastest first
};

// Compiles and simulates every scheme that trains the same and takes these options, with its own
// number of stages on a device unless that is given. Error: none does; why the first one does not.
Result<Chosen> CompileFastest(const CompileOptions& options, const PassObserver& observer);

}  // namespace pp
