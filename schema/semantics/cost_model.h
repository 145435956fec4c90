// What an instruction costs. Times are those of one micro-batch on a whole device, in seconds or in
// any unit, T; if a pipe places V stages on a device, each costs 1/V.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// One number for all stages, or one for each.
using PerStage = std::vector<double>;

// Sums of everything in a plan stay far below double's maximum.
inline constexpr double kMostCost = 1e15;

struct CostModel {
  PerStage f{1};         // forward
  PerStage b{2};         // whole backward
  PerStage r;            // recompute; empty: as f, or the share of it that is recomputed
  PerStage bi, bw;       // input and weight half; empty: b/2
  PerStage fb;           // a forward of stage s that overlaps a backward (DualPipe); empty: f + b
  PerStage comm{0};      // a message of stage s: how long it occupies its channel
  PerStage latency{0};   // and how much later it arrives
  PerStage post{0};      // and what its SEND takes of the compute lane, unless that blocks anyway
  double bandwidth = 0;  // bytes per unit of time, added to comm if there is a model; 0: no limit
  PerStage reduce{0};    // a REDUCE_grad
  // The share of a reduction's time that its device's compute lane loses to it: of a GPU's
  // multiprocessors those that run NCCL's kernels, of a core that does both all of it.
  double contention = 0;
  PerStage step{0};      // a STEP
  PerStage in{0};        // what a CFW keeps, in activations (memory, not time)
  bool seconds = false;  // times are in seconds, and bandwidth is in bytes per second

  std::string_view Unit() const { return seconds ? "s" : "T"; }
};

// "f=1,b=2,r=1,bi=1,bw=1,fb=3,comm=0,latency=0,post=0,bandwidth=0,reduce=0,contention=0,step=0,
// in=0", each key at most once, a value being one number >= 0 or, but for bandwidth and contention,
// one for each stage: "f=1:1:2:1". All may be left out.
// If one has a unit (f=10ms, bandwidth=100GB/s), the others are in seconds or have theirs.
Result<CostModel> ParseCosts(const std::string& text, int stages);

// The same text, of all keys that have values.
std::string ToText(const CostModel& costs);

// f, b, bi, bw and r in proportion to the floating-point operations of the stages (model/work.h): T
// is the mean of their forwards.
CostModel CostsByWork(const Job& job);

// Those of the text; if it is empty, by the work of the model if there is one.
Result<CostModel> CostsOf(const Program& program, const std::string& text);

// The number for one stage.
double At(const PerStage& values, int stage);

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
    return lane == Lane::kReduce ? contention_ * (*this)(i)
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
  std::vector<double> pairs_, latency_, post_;
  double contention_ = 0;
  double tied_ = 0;  // a REDUCE_tied: what its bytes would cost among those of its first stage
};

}  // namespace pp
