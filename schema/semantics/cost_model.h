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
// is the mean of their forwards, of micro-batches of the first shape.
CostModel CostsByWork(const Job& job);

// Those that are given; else by the work of the model if there is one. Error: not as many numbers
// as stages; bytes beside a model, which says how many there are.
Result<CostModel> CostsOf(const Program& program, const std::optional<CostModel>& given);
// Those that the program has.
inline Result<CostModel> CostsOf(const Program& program) { return CostsOf(program, program.costs); }

// How many a value of that kind and stage has, or what lasts from step to step (kWeights), or what
// an instruction needs (kScratch); whole ones, and 0 of other kinds.
double BytesOf(const CostModel& costs, Kind kind, int stage);

class ShapeRatios;

// Durations by op, stage and the shape of the micro-batch. Costs that say nothing of shapes are
// those of the first one: another one's times are as its operations, and its messages' as their
// bytes.
class Durations {
 public:
  Durations(const CostModel& costs, const Program& program);
  double operator()(const Instruction& i) const {
    const auto& row = rows_[static_cast<size_t>(i.op)];
    if (i.op == Op::kReduceTied) return tied_;
    if (row.empty() || i.stage < 0) return 0;
    const double time = row[Cell(i)];
    return i.bucket < 0 ? time : time * Share(i.stage, i.bucket);
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
  std::vector<double>& Row(Op op) { return rows_[static_cast<size_t>(op)]; }
  void AddMessages(const CostModel& costs, const Program& program, const ShapeRatios& ratios);
  void AddUpdates(const CostModel& costs, const Program& program,
                  const std::vector<double>& shares_of);
  // In a row: stage after stage of the first shape, and so on.
  size_t Cell(const Instruction& i) const {
    if (i.micro < 0 || shape_of_.empty()) return i.stage;
    return shape_of_[i.micro % shape_of_.size()] * latency_.size() + i.stage;
  }
  // Of a stage's gradients that a bucket has.
  double Share(int stage, size_t bucket) const {
    return bucket < shares_[stage].size() ? shares_[stage][bucket] : 0;
  }

  std::vector<int32_t> shape_of_;  // as the program's
  std::vector<double> rows_[kOpNumbers];
  std::vector<std::vector<double>> shares_;  // by stage and bucket
  std::vector<double> pairs_, latency_, post_, contention_;
  double tied_ = 0;  // a REDUCE_tied: what its bytes would cost among those of its first stage
};

}  // namespace pp
