#include "schema/semantics/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "schema/base/split.h"
#include "schema/base/units.h"
#include "schema/model/work.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

// The share of the operations of a stage's forward that RE repeats.
double RecomputedShare(const Job& job, int stage) {
  const StageWork work = WorkOf(LayoutStage(job, stage), job);
  return work.forward.operations > 0 ? work.recompute.operations / work.forward.operations : 0;
}

}  // namespace

double At(const PerStage& values, int stage) { return values[values.size() == 1 ? 0 : stage]; }

Result<CostModel> ParseCosts(const std::string& text, int stages) {
  CostModel costs;
  if (text.empty()) return costs;
  PerStage bandwidth{0}, contention{0};
  const std::map<std::string_view, PerStage*> keys = {{"f", &costs.f},
                                                      {"b", &costs.b},
                                                      {"r", &costs.r},
                                                      {"bi", &costs.bi},
                                                      {"bw", &costs.bw},
                                                      {"comm", &costs.comm},
                                                      {"step", &costs.step},
                                                      {"reduce", &costs.reduce},
                                                      {"in", &costs.in},
                                                      {"fb", &costs.fb},
                                                      {"latency", &costs.latency},
                                                      {"post", &costs.post},
                                                      {"bandwidth", &bandwidth},
                                                      {"contention", &contention}};
  std::map<std::string_view, bool> seen;
  for (std::string_view item : Split(text, ',')) {
    const size_t equals = item.find('=');
    const auto key = keys.find(item.substr(0, equals));
    if (equals == std::string_view::npos || key == keys.end() || seen[key->first])
      return Status::Invalid(
          fmt::format("--costs: '{}' (f, b, r, bi, bw, fb, comm, latency, post, bandwidth, reduce, "
                      "contention, step, in, each once, as in f=1,b=2)",
                      Shown(item)));
    seen[key->first] = true;
    PerStage values;
    const bool is_share = key->second == &contention;
    const Dimension dimension = key->second == &costs.in || is_share ? Dimension::kNone
                                : key->second == &bandwidth          ? Dimension::kBandwidth
                                                                     : Dimension::kTime;
    const double most = is_share ? 1 : kMostCost;
    for (std::string_view word : Split(item.substr(equals + 1), ':')) {
      const auto quantity = ReadQuantity(word);
      if (!quantity || quantity->value > most ||
          (quantity->dimension != Dimension::kNone && quantity->dimension != dimension))
        return Status::Invalid(
            fmt::format("--costs: '{}' (numbers from 0 to {:g}{})", Shown(item), most,
                        dimension == Dimension::kTime        ? ", in T, or as in 10ms"
                        : dimension == Dimension::kBandwidth ? ", or as in 100GB/s"
                                                             : ""));
      costs.seconds |= quantity->dimension != Dimension::kNone;
      values.push_back(quantity->value);
    }
    if ((key->second == &bandwidth || is_share) && values.size() != 1)
      return Status::Invalid(fmt::format("--costs: '{}' (one number)", Shown(item)));
    if (values.size() != 1 && static_cast<int>(values.size()) != stages)
      return Status::Invalid(
          fmt::format("--costs: '{}' has {} numbers (1, or {}: one for each stage)", Shown(item),
                      values.size(), stages));
    *key->second = values;
  }
  costs.bandwidth = bandwidth[0];
  costs.contention = contention[0];
  return costs;
}

std::string ToText(const CostModel& costs) {
  std::string text;
  const auto add = [&](std::string_view key, const PerStage& values, std::string_view unit) {
    if (values.empty()) return;
    const bool same = std::all_of(values.begin(), values.end(),
                                  [&](double value) { return value == values.front(); });
    text += fmt::format("{}{}=", text.empty() ? "" : ",", key);
    for (size_t s = 0; s < (same ? 1 : values.size()); ++s)
      text += fmt::format("{}{}{}", s > 0 ? ":" : "", values[s], unit);
  };
  const std::string_view time = costs.seconds ? "s" : "";
  add("f", costs.f, time);
  add("b", costs.b, time);
  add("r", costs.r, time);
  add("bi", costs.bi, time);
  add("bw", costs.bw, time);
  add("fb", costs.fb, time);
  add("comm", costs.comm, time);
  add("latency", costs.latency, time);
  if (std::any_of(costs.post.begin(), costs.post.end(), [](double post) { return post > 0; }))
    add("post", costs.post, time);
  add("bandwidth", {costs.bandwidth}, costs.seconds ? "B/s" : "");
  add("reduce", costs.reduce, time);
  if (costs.contention > 0) add("contention", {costs.contention}, "");
  add("step", costs.step, time);
  add("in", costs.in, "");
  return text;
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
  return ParseCosts(text, program.stages);
}

Durations::Durations(const CostModel& costs, const Program& program)
    : contention_(costs.contention) {
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
  if (!program.job || costs.bandwidth == 0) return;
  for (int s = 0; s + 1 < program.stages; ++s) {
    const double transfer = LayoutStage(*program.job, s).act_bytes / costs.bandwidth;
    for (Op op : {Op::kSendAct, Op::kRecvAct, Op::kSendGrad, Op::kRecvGrad})
      rows_[static_cast<size_t>(op)][s] += transfer;
  }
}

double Durations::Pair(const Instruction& a, const Instruction& b) const {
  const bool first = a.op == Op::kForward || a.op == Op::kForwardDrop;
  const double given = pairs_[first ? a.stage : b.stage];
  return given >= 0 ? given : (*this)(a) + (*this)(b);
}

}  // namespace pp
