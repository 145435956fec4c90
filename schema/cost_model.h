// What an instruction costs. Times are those of one micro-batch on a whole device, in
// any unit (T unless measured); of V stages that a pipe lays on a device, one costs 1/V.
#pragma once

#include <string>
#include <vector>

#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// One number for all stages, or one for each.
using PerStage = std::vector<double>;

struct CostModel {
  PerStage f{1};       // forward
  PerStage b{2};       // whole backward
  PerStage r;          // recompute; empty: as f
  PerStage bi, bw;     // input and weight half; empty: b/2
  PerStage comm{0};    // a message of stage s
  PerStage reduce{0};  // a REDUCE_grad
  PerStage step{0};    // a STEP
  PerStage in{0};      // what a CFW keeps, in activations (memory, not time)
};

// "f=1,b=2,r=1,bi=1,bw=1,comm=0,reduce=0,step=0,in=0", each key at most once, a value
// being one number >= 0 or one for each stage: "f=1:1:2:1".
Result<CostModel> ParseCosts(const std::string& text, int stages);

// The number for one stage.
double At(const PerStage& values, int stage);

// Durations by op and stage.
class Durations {
 public:
  Durations(const CostModel& costs, const Program& program);
  double operator()(const Instruction& i) const {
    const auto& row = rows_[static_cast<size_t>(i.op)];
    return row.empty() || i.stage < 0 ? 0 : row[i.stage];
  }

 private:
  std::vector<double> rows_[256];
};

}  // namespace pp
