#include "schema/semantics/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "schema/model/work.h"
#include "schema/semantics/alike.h"
#include "schema/semantics/buckets.h"
#include "schema/semantics/extents.h"

namespace pp {
namespace {

// The share of the operations of a stage's forward that RE repeats.
double RecomputedShare(const Program& program, int stage, int shape) {
  const Job job = program.job->OfShape(shape);
  const StageWork work = WorkOf(LayoutStage(job, stage), job);
  return work.forward.operations > 0 ? work.recompute.operations / work.forward.operations : 0;
}

// Of the operations of a stage, those that a part of a micro-batch has.
using Operations = double (*)(const StageWork&);
double OfForward(const StageWork& work) { return work.forward.operations; }
double OfRecompute(const StageWork& work) { return work.recompute.operations; }
double OfInput(const StageWork& work) { return work.input.operations; }
double OfWeight(const StageWork& work) { return work.weight.operations; }
double OfBackward(const StageWork& work) { return OfInput(work) + OfWeight(work); }
double OfPair(const StageWork& work) { return OfForward(work) + OfBackward(work); }

}  // namespace

// How many times as long as of the first shape something takes of another one.
class ShapeRatios {
 public:
  explicit ShapeRatios(const Program& program) : stages_(program.stages) {
    if (program.shapes() == 1) return;
    const Extents extents(program);
    for (int shape = 0; shape < program.shapes(); ++shape)
      for (int s = 0; s < program.stages; ++s) {
        works_.push_back(WorkOf(extents.Of(s, shape), extents.job(shape)));
        bytes_.push_back(static_cast<double>(extents.Of(s, shape).act_bytes));
      }
  }
  double Of(Operations operations, int stage, int shape) const {
    if (shape == 0) return 1;
    const double first = operations(works_[stage]);
    return first > 0 ? operations(works_[shape * stages_ + stage]) / first : 1;
  }
  double OfMessage(int stage, int shape) const {
    return shape == 0 || bytes_[stage] == 0 ? 1 : bytes_[shape * stages_ + stage] / bytes_[stage];
  }

 private:
  const int stages_;
  std::vector<StageWork> works_;  // by shape and stage; none: there is one shape
  std::vector<double> bytes_;     // of an act
};

namespace {

// Adds the number of each stage of each shape, times its factor, and `ratio(stage, shape)` where
// the costs do not say what other shapes take than the first one.
template <typename Factor, typename Ratio>
void AddRow(const Program& program, const PerStage& values, Factor factor, Ratio ratio,
            std::vector<double>* row) {
  const bool known = HasShapes(values, program.stages);
  for (int shape = 0; shape < program.shapes(); ++shape)
    for (int s = 0; s < program.stages; ++s)
      row->push_back(At(values, s, shape, program.stages) * factor(s) *
                     (known ? 1 : ratio(s, shape)));
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
  std::vector<CostModel> shapes;
  double mean = 0;  // of the first one's forwards
  for (int shape = 0; shape < job.shapes.count(); ++shape) {
    const Job one = job.OfShape(shape);
    CostModel costs{.f = {}, .b = {}};
    double sum = 0;
    for (int s = 0; s < job.stages(); ++s) {
      const StageWork work = WorkOf(LayoutStage(one, s), one);
      costs.f.push_back(OfForward(work));
      costs.r.push_back(OfRecompute(work));
      costs.bi.push_back(OfInput(work));
      costs.bw.push_back(OfWeight(work));
      costs.b.push_back(OfBackward(work));
      sum += OfForward(work);
    }
    if (shape == 0) mean = sum / job.stages();
    for (PerStage* times : {&costs.f, &costs.r, &costs.bi, &costs.bw, &costs.b})
      for (double& time : *times) time /= mean;
    shapes.push_back(std::move(costs));
  }
  return OfShapes(shapes, job.stages());
}

Result<CostModel> CostsOf(const Program& program, const std::optional<CostModel>& given) {
  if (!given) return program.job ? CostsByWork(*program.job) : CostModel();
  PP_RETURN_IF_ERROR(CheckCosts(*given, program.stages, program.shapes()).In("--costs"));
  if (!program.job || !CountsBytes(*given)) return *given;
  return Status::Invalid(fmt::format(
      "--costs: '{}' has bytes beside a model, which says how many there are (one of the two)",
      ToText(*given)));
}

Durations::Durations(const CostModel& costs, const Program& program) : shape_of_(program.shape_of) {
  PerStage half = costs.b;
  for (double& value : half) value /= 2;
  const std::vector<double> shares_of = program.Shares();
  const ShapeRatios ratios(program);
  const auto share = [&](int s) { return shares_of[s]; };
  auto fill = [&](Op op, const PerStage& values, const PerStage& fallback, Operations operations) {
    AddRow(
        program, values.empty() ? fallback : values, share,
        [&](int s, int shape) { return ratios.Of(operations, s, shape); }, &Row(op));
  };
  fill(Op::kForward, costs.f, {}, OfForward);
  fill(Op::kForwardDrop, costs.f, {}, OfForward);
  fill(Op::kEvaluate, costs.f, {}, OfForward);
  // As a forward, or the share of it that is recomputed.
  const bool parts = program.job && !program.job->recompute.empty();
  PerStage recompute = costs.r;
  const int shapes = HasShapes(costs.f, program.stages) ? program.shapes() : 1;
  for (int shape = 0; shape < shapes && costs.r.empty() && parts; ++shape)
    for (int s = 0; s < program.stages; ++s)
      recompute.push_back(At(costs.f, s, shape, program.stages) *
                          RecomputedShare(program, s, shape));
  fill(Op::kRecompute, recompute, costs.f, costs.r.empty() && !parts ? OfForward : OfRecompute);
  fill(Op::kBackward, costs.b, {}, OfBackward);
  fill(Op::kBackwardInput, costs.bi, half, OfInput);
  fill(Op::kBackwardWeight, costs.bw, half, OfWeight);
  if (!costs.fb.empty())
    AddRow(
        program, costs.fb, share, [&](int s, int shape) { return ratios.Of(OfPair, s, shape); },
        &pairs_);
  AddMessages(costs, program, ratios);
  AddUpdates(costs, program, shares_of);
}

void Durations::AddMessages(const CostModel& costs, const Program& program,
                            const ShapeRatios& ratios) {
  const int stages = program.stages;
  for (int s = 0; s < stages; ++s) {
    latency_.push_back(At(costs.latency, s));
    post_.push_back(program.p2p == P2p::kBlocking ? 0 : At(costs.post, s));
  }
  const auto ratio = [&](int s, int shape) { return ratios.OfMessage(s, shape); };
  for (Op op : {Op::kSendAct, Op::kRecvAct, Op::kSendGrad, Op::kRecvGrad})
    AddRow(
        program, costs.comm, [](int) { return 1; }, ratio, &Row(op));
  for (int s = 0; s + 1 < stages; ++s) {
    const double bandwidth = At(costs.bandwidth, s);
    if (bandwidth == 0) continue;
    const auto of_model =
        program.job ? static_cast<double>(LayoutStage(program.job->OfShape(0), s).act_bytes) : 0;
    const auto transfer = [&](Kind kind) {
      constexpr double kMost = 1e15;  // as of other times
      return std::min(kMost, (program.job ? of_model : BytesOf(costs, kind, s)) / bandwidth);
    };
    for (int shape = 0; shape < program.shapes(); ++shape)
      for (const auto& [op, kind] : {std::pair(Op::kSendAct, Kind::kAct),
                                     {Op::kRecvAct, Kind::kAct},
                                     {Op::kSendGrad, Kind::kGrad},
                                     {Op::kRecvGrad, Kind::kGrad}})
        Row(op)[shape * stages + s] += transfer(kind) * ratio(s, shape);
  }
}

// What belongs to no micro-batch.
void Durations::AddUpdates(const CostModel& costs, const Program& program,
                           const std::vector<double>& shares_of) {
  auto fill = [&](Op op, const PerStage& values, double factor) {
    for (int s = 0; s < program.stages; ++s)
      Row(op).push_back(At(values, s) * shares_of[s] * factor);
  };
  fill(Op::kStep, costs.step, 1);
  // The halves of an all-reduce; each is cut into buckets by bytes.
  fill(Op::kReduceGrad, costs.reduce, 1);
  fill(Op::kScatterGrad, costs.reduce, 0.5);
  fill(Op::kGatherWeights, costs.reduce, 0.5);
  const std::vector<int32_t> tied = program.TiedStages();
  for (int s = 0; s < program.stages; ++s) {
    contention_.push_back(At(costs.contention, s));
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
}

double Durations::Pair(const Instruction& a, const Instruction& b) const {
  const bool first = a.op == Op::kForward || a.op == Op::kForwardDrop;
  return pairs_.empty() ? (*this)(a) + (*this)(b) : pairs_[Cell(first ? a : b)];
}

}  // namespace pp
