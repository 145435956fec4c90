#include "schema/semantics/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "schema/model/work.h"
#include "schema/semantics/alike.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

// The share of the operations of a stage's forward that RE repeats.
double RecomputedShare(const Job& job, int stage) {
  const StageWork work = WorkOf(LayoutStage(job, stage), job);
  return work.forward.operations > 0 ? work.recompute.operations / work.forward.operations : 0;
}

}  // namespace

double BytesOf(const CostModel& costs, Kind kind, int stage) {
  const auto given_or = [&](const PerStage& row, Kind other, int its_stage) {
    return row.empty() ? BytesOf(costs, other, its_stage) : std::ceil(At(row, stage));
  };
  switch (kind) {
    case Kind::kStash:
      return given_or(costs.stash, Kind::kNone, -1);
    case Kind::kInput:
      return given_or(costs.input, stage > 0 ? Kind::kAct : Kind::kNone, stage - 1);
    case Kind::kWork:
      return given_or(costs.work, Kind::kStash, stage);
    case Kind::kAct:
      return given_or(costs.act, Kind::kNone, -1);
    case Kind::kGrad:
      return given_or(costs.grad, Kind::kAct, stage);
    case Kind::kWeights:
      return given_or(costs.weights, Kind::kNone, -1);
    case Kind::kScratch:
      return given_or(costs.transient, Kind::kNone, -1);
    default:
      return 0;
  }
}

CostModel CostsByWork(const Job& job) {
  CostModel costs{.f = {}, .b = {}};
  double sum = 0;
  for (int s = 0; s < job.stages(); ++s) {
    const StageWork work = WorkOf(LayoutStage(job, s), job);
    costs.f.push_back(work.forward.operations);
    costs.r.push_back(work.recompute.operations);
    costs.bi.push_back(work.input.operations);
    costs.bw.push_back(work.weight.operations);
    costs.b.push_back(work.input.operations + work.weight.operations);
    sum += work.forward.operations;
  }
  const double mean = sum / job.stages();
  for (PerStage* times : {&costs.f, &costs.r, &costs.bi, &costs.bw, &costs.b})
    for (double& time : *times) time /= mean;
  return costs;
}

Result<CostModel> CostsOf(const Program& program, const std::optional<CostModel>& given) {
  if (!given) return program.job ? CostsByWork(*program.job) : CostModel();
  PP_RETURN_IF_ERROR(CheckCosts(*given, program.stages).In("--costs"));
  if (!program.job || !CountsBytes(*given)) return *given;
  return Status::Invalid(fmt::format(
      "--costs: '{}' has bytes beside a model, which says how many there are (one of the two)",
      ToText(*given)));
}

Durations::Durations(const CostModel& costs, const Program& program) {
  PerStage half = costs.b;
  for (double& value : half) value /= 2;
  const std::vector<double> shares_of = program.Shares();
  const std::vector<double> whole(program.stages, 1);
  auto fill = [&](Op op, const PerStage& values, const PerStage& fallback,
                  const std::vector<double>& factors, double factor = 1) {
    auto& row = rows_[static_cast<size_t>(op)];
    for (int s = 0; s < program.stages; ++s)
      row.push_back(At(values.empty() ? fallback : values, s) * factors[s] * factor);
  };
  fill(Op::kForward, costs.f, {}, shares_of);
  fill(Op::kForwardDrop, costs.f, {}, shares_of);
  fill(Op::kEvaluate, costs.f, {}, shares_of);
  PerStage recompute = costs.r;
  for (int s = 0; s < program.stages && costs.r.empty() && program.job; ++s)
    recompute.push_back(At(costs.f, s) *
                        (program.job->recompute.empty() ? 1 : RecomputedShare(*program.job, s)));
  fill(Op::kRecompute, recompute, costs.f, shares_of);
  fill(Op::kBackward, costs.b, {}, shares_of);
  fill(Op::kBackwardInput, costs.bi, half, shares_of);
  fill(Op::kBackwardWeight, costs.bw, half, shares_of);
  fill(Op::kStep, costs.step, {}, shares_of);
  // The halves of an all-reduce; each is cut into buckets by bytes.
  fill(Op::kReduceGrad, costs.reduce, {}, shares_of);
  fill(Op::kScatterGrad, costs.reduce, {}, shares_of, 0.5);
  fill(Op::kGatherWeights, costs.reduce, {}, shares_of, 0.5);
  const std::vector<int32_t> tied = program.TiedStages();
  for (int s = 0; s < program.stages; ++s) {
    pairs_.push_back(costs.fb.empty() ? -1 : At(costs.fb, s) * shares_of[s]);
    latency_.push_back(At(costs.latency, s));
    contention_.push_back(At(costs.contention, s));
    post_.push_back(program.p2p == P2p::kBlocking ? 0 : At(costs.post, s));
    std::vector<double>& shares = shares_.emplace_back();
    if (At(costs.reduce, s) == 0) continue;
    if (IsLikeBefore(program, s) && !shares_[s - 1].empty() &&
        std::find(tied.begin(), tied.end(), s) == tied.end()) {
      shares = shares_[s - 1];
      continue;
    }
    int64_t bytes = 0;
    const std::vector<Bucket> buckets = BucketsOf(program, s);
    for (const Bucket& bucket : buckets) bytes += bucket.bytes;
    for (const Bucket& bucket : buckets) {
      shares.push_back(bytes > 0 ? static_cast<double>(bucket.bytes) / bytes
                                 : 1.0 / buckets.size());
      if (bucket.tied && s == tied.front())
        tied_ += At(costs.reduce, s) * shares_of[s] * shares.back();
    }
  }
  for (Op op : {Op::kSendAct, Op::kRecvAct, Op::kSendGrad, Op::kRecvGrad})
    fill(op, costs.comm, {}, whole);
  for (int s = 0; s + 1 < program.stages; ++s) {
    const double bandwidth = At(costs.bandwidth, s);
    if (bandwidth == 0) continue;
    const auto of_model =
        program.job ? static_cast<double>(LayoutStage(*program.job, s).act_bytes) : 0;
    const auto transfer = [&](Kind kind) {
      constexpr double kMost = 1e15;  // as of other times
      return std::min(kMost, (program.job ? of_model : BytesOf(costs, kind, s)) / bandwidth);
    };
    for (Op op : {Op::kSendAct, Op::kRecvAct})
      rows_[static_cast<size_t>(op)][s] += transfer(Kind::kAct);
    for (Op op : {Op::kSendGrad, Op::kRecvGrad})
      rows_[static_cast<size_t>(op)][s] += transfer(Kind::kGrad);
  }
}

double Durations::Pair(const Instruction& a, const Instruction& b) const {
  const bool first = a.op == Op::kForward || a.op == Op::kForwardDrop;
  const double given = pairs_[first ? a.stage : b.stage];
  return given >= 0 ? given : (*this)(a) + (*this)(b);
}

}  // namespace pp
