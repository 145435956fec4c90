// What an instruction of a program costs, and what its stages' values hold, by its costs
// (model/costs.h).
#pragma once

#include <optional>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/costs.h"
#include "schema/program.h"

namespace pp {

// f, b, bi, bw and r in proportion to the floating-point operations of the stages (model/work.h): T
// is the mean of their forwards.
CostModel CostsByWork(const Job& job);

// Those that are given; else by the work of the model if there is one. Error: not as many numbers
// as stages; bytes beside a model, which says how many there are.
Result<CostModel> CostsOf(const Program& program, const std::optional<CostModel>& given);
// Those that the program has.
inline Result<CostModel> CostsOf(const Program& program) { return CostsOf(program, program.costs); }

// How many a value of that kind and stage has, or what lasts from step to step (kWeights), or what
// an instruction needs (kScratch); whole ones, and 0 of other kinds.
double BytesOf(const CostModel& costs, Kind kind, int stage);

// Durations by op and stage.
class Durations {
 public:
  Durations(const CostModel& costs, const Program& program);
  double operator()(const Instruction& i) const {
    const auto& row = rows_[static_cast<size_t>(i.op)];
    if (i.op == Op::kReduceTied) return tied_;
    if (row.empty() || i.stage < 0) return 0;
    return i.bucket < 0 ? row[i.stage] : row[i.stage] * Share(i.stage, i.bucket);
  }
  // Of two instructions that overlap.
  double Pair(const Instruction& a, const Instruction& b) const;
  // What the compute lane loses to a message, a reduction or a gathering of weights that it starts.
  double Lost(const Instruction& i) const {
    const Lane lane = Info(i.op).lane;
    return lane == Lane::kReduce ? contention_[i.stage < 0 ? 0 : i.stage] * (*this)(i)
           : lane == Lane::kSend ? post_[i.stage]
                                 : 0;
  }
  // From the end of a message on its channel to its arrival.
  double Latency(const Instruction& i) const { return latency_[i.stage]; }

 private:
  // Of a stage's gradients that a bucket has.
  double Share(int stage, size_t bucket) const {
    return bucket < shares_[stage].size() ? shares_[stage][bucket] : 0;
  }

  std::vector<double> rows_[kOpNumbers];
  std::vector<std::vector<double>> shares_;  // by stage and bucket
  std::vector<double> pairs_, latency_, post_, contention_;
  double tied_ = 0;  // a REDUCE_tied: what its bytes would cost among those of its first stage
};

}  // namespace pp
