// What an instruction costs, and what a stage's values hold. Times are those of one micro-batch on
// a whole device, in seconds or in any unit, T; if a pipe places V stages on a device, each costs
// 1/V. The rows are in costs.def.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/base/units.h"
#include "schema/program.h"

namespace pp {

// One number for all stages, or one for each; some may have none.
using PerStage = std::vector<double>;

// By key. Sums of everything in a plan stay far below double's maximum.
struct CostModel {
#define PP_COST(key, initial, unit, of, most, fallback, meaning) PerStage key{initial};
#include "schema/costs.def"
  bool seconds = false;  // times are in seconds, and bandwidth is in bytes per second

  std::string_view Unit() const { return seconds ? "s" : "T"; }
};

// A row of the table.
struct CostInfo {
  std::string_view key;
  PerStage CostModel::*member;
  Dimension unit;
  bool of_device;  // of V stages on a device, each has 1/V of it
  double most;
  PerStage initial;
  std::string_view meaning;
};
std::span<const CostInfo> Costs();
// "f, b, r, ...", for errors.
std::string CostKeys();

// "f=1,b=2,stash=40MiB", each key of the table at most once, a value being one number >= 0 or one
// for each stage: "f=1:1:2:1". All may be left out.
// If a time or a bandwidth has a unit (f=10ms, bandwidth=100GB/s), the other ones are in seconds or
// have theirs. Bytes have one or are bare.
Result<CostModel> ParseCosts(const std::string& text, int stages);

// The same text, of all keys that have values, but for those that are zero as if not given.
std::string ToText(const CostModel& costs);

// f, b, bi, bw and r in proportion to the floating-point operations of the stages (model/work.h): T
// is the mean of their forwards.
CostModel CostsByWork(const Job& job);

// Those of the text; if it is empty, by the work of the model if there is one. Error, too: bytes
// beside a model, which says how many there are.
Result<CostModel> CostsOf(const Program& program, const std::string& text);

// The number for one stage.
double At(const PerStage& values, int stage);

// Whether the costs say how many bytes anything has.
bool CountsBytes(const CostModel& costs);
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
