#include "schema/semantics/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "schema/base/split.h"
#include "schema/model/work.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

// The share of the operations of a stage's forward that RE repeats.
double RecomputedShare(const Job& job, int stage) {
  const StageWork work = WorkOf(LayoutStage(job, stage), job);
  return work.forward.operations > 0 ? work.recompute.operations / work.forward.operations : 0;
}

// Of a number with its unit, in an error.
std::string_view ExampleOf(Dimension unit) {
  return unit == Dimension::kTime        ? ", in T, or as in 10ms"
         : unit == Dimension::kBandwidth ? ", or as in 100GB/s"
         : unit == Dimension::kBytes     ? ", or as in 40MiB"
                                         : "";
}

}  // namespace

std::span<const CostInfo> Costs() {
  static const CostInfo kCosts[] = {
#define PP_COST(key, initial, unit, of, most, fallback, meaning) \
  {#key,                                                         \
   &CostModel::key,                                              \
   Dimension::k##unit,                                           \
   std::string_view(#of) == "Device",                            \
   most,                                                         \
   PerStage{initial},                                            \
   meaning},
#include "schema/costs.def"
  };
  return kCosts;
}

std::string CostKeys() {
  std::string keys;
  for (const CostInfo& cost : Costs()) keys.append(keys.empty() ? "" : ", ").append(cost.key);
  return keys;
}

double At(const PerStage& values, int stage) { return values[values.size() == 1 ? 0 : stage]; }

Result<CostModel> ParseCosts(const std::string& text, int stages) {
  CostModel costs;
  if (text.empty()) return costs;
  std::set<std::string_view> seen;
  for (const std::string_view item : Split(text, ',')) {
    const size_t equals = item.find('=');
    const auto row = std::find_if(Costs().begin(), Costs().end(), [&](const CostInfo& cost) {
      return equals != item.npos && cost.key == item.substr(0, equals);
    });
    if (row == Costs().end() || !seen.insert(row->key).second)
      return Status::Invalid(
          fmt::format("--costs: '{}' ({}, each once, as in f=1,b=2)", Shown(item), CostKeys()));
    PerStage values;
    for (const std::string_view word : Split(item.substr(equals + 1), ':')) {
      const auto quantity = ReadQuantity(word);
      const bool bare = quantity && quantity->dimension == Dimension::kNone;
      if (!quantity || quantity->value > row->most || !(bare || quantity->dimension == row->unit))
        return Status::Invalid(fmt::format("--costs: '{}' (numbers from 0 to {:g}{})", Shown(item),
                                           row->most, ExampleOf(row->unit)));
      costs.seconds |= !bare && row->unit != Dimension::kBytes;
      values.push_back(quantity->value);
    }
    if (values.size() != 1 && static_cast<int>(values.size()) != stages)
      return Status::Invalid(
          fmt::format("--costs: '{}' has {} numbers (1, or {}: one for each stage)", Shown(item),
                      values.size(), stages));
    costs.*row->member = values;
  }
  return costs;
}

std::string ToText(const CostModel& costs) {
  std::string text;
  for (const CostInfo& row : Costs()) {
    const PerStage& values = costs.*row.member;
    const auto all = [&](double same) {
      return std::all_of(values.begin(), values.end(), [&](double x) { return x == same; });
    };
    if (values.empty() || (row.initial == PerStage{0} && all(0))) continue;
    const std::string_view unit = row.unit == Dimension::kBytes       ? "B"
                                  : !costs.seconds                    ? ""
                                  : row.unit == Dimension::kTime      ? "s"
                                  : row.unit == Dimension::kBandwidth ? "B/s"
                                                                      : "";
    text += fmt::format("{}{}=", text.empty() ? "" : ",", row.key);
    for (size_t s = 0; s < (all(values.front()) ? 1 : values.size()); ++s)
      text += fmt::format("{}{}{}", s > 0 ? ":" : "", values[s], unit);
  }
  return text;
}

bool CountsBytes(const CostModel& costs) {
  return std::any_of(Costs().begin(), Costs().end(), [&](const CostInfo& row) {
    return row.unit == Dimension::kBytes && !(costs.*row.member).empty();
  });
}

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

Result<CostModel> CostsOf(const Program& program, const std::string& text) {
  if (text.empty() && program.job) return CostsByWork(*program.job);
  auto costs = ParseCosts(text, program.stages);
  if (!costs.ok() || !program.job || !CountsBytes(*costs)) return costs;
  return Status::Invalid(fmt::format(
      "--costs: '{}' has bytes beside a model, which says how many there are (one of the two)",
      Shown(text)));
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
