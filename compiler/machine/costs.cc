#include "compiler/machine/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "compiler/machine/network.h"
#include "schema/model/work.h"
#include "schema/semantics/buckets.h"
#include "schema/topology.h"

namespace pp {
namespace {

double Transfer(const Link& link, double bytes) {
  return link.bandwidth > 0 ? bytes / link.bandwidth : 0;
}

class Pricer {
 public:
  Pricer(const Machine& machine, const Program& program, Layouts* layouts)
      : machine_(machine),
        program_(program),
        layouts_(*layouts),
        job_(*program.job),
        shares_(program.Shares()),
        topology_(TopologyOf(program)),
        ranks_(int64_t{program.replicas} * program.devices * job_.tp) {
    std::vector<int64_t> peers(job_.tp);
    std::iota(peers.begin(), peers.end(), 0);
    peers_ = ShapeOf(machine, peers);
  }

  CostModel Run() const {
    CostModel costs{
        .f = {}, .b = {}, .comm = {}, .latency = {}, .post = {}, .reduce = {}, .step = {}};
    costs.seconds = true;
    costs.contention = {machine_.contention};
    for (int s = 0; s < program_.stages; ++s) {
      Layouts::Stage& stage = layouts_.Of(job_, s);
      const StageLayout& layout = stage.layout;
      if (!stage.alone) {
        stage.alone.emplace();
        for (const StageOperator& placed : std::exchange(stage.layout.operators, {}))
          Add(placed, &stage);
      }
      const Layouts::Times times = TimesOf(stage);
      const double share = shares_[s];
      costs.f.push_back(times.forward / share);
      costs.r.push_back(times.recompute / share);
      costs.bi.push_back(times.input / share);
      costs.bw.push_back(times.weight / share);
      costs.b.push_back((times.input + times.weight) / share);
      costs.reduce.push_back(Reduction(s, layout) / share);
      costs.step.push_back(Step(layout) / share);
      const auto bytes = static_cast<double>(layout.act_bytes);
      const Link link = MessageLink(s, bytes);
      costs.comm.push_back(layout.last ? 0 : machine_.message + Transfer(link, bytes));
      costs.latency.push_back(layout.last ? 0 : link.latency);
      costs.post.push_back(machine_.post);
    }
    return costs;
  }

 private:
  double At(const Work& work, double reached) const {
    if (work.operations == 0 && work.bytes == 0) return 0;
    const double rate = machine_.flops[static_cast<int>(job_.dtype)] * reached;
    double time = work.operations / rate;
    if (machine_.memory_bandwidth > 0)
      time = std::max(time, work.bytes / (machine_.memory_bandwidth * machine_.memory_share));
    return machine_.launch + time;
  }

  // What a product of this shape took where that was measured.
  void Measured(ProductShape shape, double* seconds) const {
    if (machine_.products.empty() || job_.dtype == Dtype::kFp32) return;
    if (shape.m < shape.n) std::swap(shape.m, shape.n);
    const auto found = machine_.products.find(shape);
    if (found == machine_.products.end()) return;
    const auto size = [](int64_t of) { return static_cast<double>(of); };
    *seconds = 2 * size(shape.m) * size(shape.n) * size(shape.k) / found->second;
  }

  void Add(const StageOperator& placed, Layouts::Stage* stage) const {
    const Operator& op = placed.op;
    const StageWork work = WorkOf(op, job_);
    const double reached =
        op.kind == OperatorKind::kAttention ? machine_.attention : machine_.product;
    double forward = At(work.forward, reached), input = At(work.input, reached);
    double weight = At(work.weight, reached);
    if (op.kind == OperatorKind::kLinear) {
      const int64_t tokens = job_.tokens();
      Measured({tokens, op.out, op.in}, &forward);
      Measured({tokens, op.in, op.out}, &input);
      if (op.trains() && op.adapters.empty()) Measured({op.in, op.out, tokens}, &weight);
    }
    // Each adapter is two products and a scaling, in all three; in the weight half, which makes
    // both of its inner values again and then two gradients, one launch is counted above.
    for (const Adapter& adapter : op.adapters) {
      forward += 3 * machine_.launch;
      input += 3 * machine_.launch;
      weight += 5 * machine_.launch;
      if (op.cut != Cut::kNone) stage->sums[adapter.rank].weight += 1;
    }
    const auto forward_of = [&](double takes, Layouts::Times* times) {
      times->forward += takes;
      if (placed.recomputed) times->recompute += takes;
      if (placed.remade) times->weight += takes;
    };
    forward_of(forward, &*stage->alone);
    stage->alone->input += input;
    stage->alone->weight += weight;
    // Peers add their parts of these outputs, and of the gradients with respect to those inputs.
    if (op.cut == Cut::kIn || (op.cut == Cut::kOut && op.kind == OperatorKind::kEmbedding))
      forward_of(1, &stage->sums[op.out]);
    if (op.cut == Cut::kOut && op.kind == OperatorKind::kLinear) stage->sums[op.in].input += 1;
  }

  Layouts::Times TimesOf(const Layouts::Stage& stage) const {
    Layouts::Times times = *stage.alone;
    for (const auto& [width, count] : stage.sums) {
      const double takes = PeersTake(width);
      times.forward += count.forward * takes;
      times.recompute += count.recompute * takes;
      times.input += count.input * takes;
      times.weight += count.weight * takes;
    }
    return times;
  }

  // A sum of one value per token and element over the tensor-parallel peers.
  double PeersTake(int64_t width) const {
    const double bytes = static_cast<double>(job_.tokens() * width * BytesOf(job_.dtype));
    return CollectiveSeconds(machine_, Collective::kAllReduce, peers_, ranks_, bytes);
  }

  // The slowest that a stage's messages cross.
  Link MessageLink(int stage, double bytes) const {
    Link slowest = machine_.inside;
    if (stage + 1 == program_.stages) return slowest;
    // Of a pipeline's devices side by side only some have the next one on another node.
    const bool side_by_side = program_.rank_order == RankOrder::kTpPpDp;
    const int64_t active = side_by_side ? job_.tp : std::min<int64_t>(machine_.node, ranks_);
    // How replicas lie in nodes repeats after as many as a node has devices.
    const int replicas = std::min(program_.replicas, machine_.node);
    for (const Pipe& pipe : program_.pipes) {
      const int from = pipe.device_of[stage], to = pipe.device_of[stage + 1];
      if (from == to) continue;
      for (int replica = 0; replica < replicas; ++replica) {
        const Link link = LinkBetween(machine_, RankOf(replica, from), RankOf(replica, to), active);
        if (Transfer(link, bytes) + link.latency > Transfer(slowest, bytes) + slowest.latency)
          slowest = link;
      }
    }
    return slowest;
  }

  int64_t RankOf(int replica, int device) const {
    return topology_.RankOf({.replica = replica, .device = device});
  }

  double Reduction(int stage, const StageLayout& layout) const {
    if (program_.Copies() == 1 || layout.wgrad_bytes == 0) return 0;
    std::vector<int> devices;
    for (const Pipe& pipe : program_.pipes) devices.push_back(pipe.device_of[stage]);
    const auto [shape, is_new] = shapes_.try_emplace(devices);
    if (is_new) shape->second = ShapeOfCopies(machine_, topology_, devices);
    const Collective halves =
        program_.zero > 0 ? Collective::kScatterAndGather : Collective::kAllReduce;
    return CollectiveSeconds(machine_, halves, shape->second, ranks_,
                             static_cast<double>(layout.wgrad_bytes),
                             1 + layout.wgrad_bytes / kBucketBytes);
  }

  // Reads and writes trained weights and moments, reads gradients; a shard of them with ZeRO-1.
  double Step(const StageLayout& layout) const {
    const int64_t trained = std::max<int64_t>(0, layout.weights_bytes - layout.trained);
    if (trained == 0) return 0;
    if (machine_.memory_bandwidth == 0) return machine_.launch;
    const int64_t copies = program_.replicas * static_cast<int64_t>(program_.pipes.size());
    const int64_t shards = program_.zero > 0 ? copies : 1;
    const auto bytes = static_cast<double>(
        (2 * trained + 2 * layout.optimizer_bytes + layout.wgrad_bytes) / shards +
        layout.wgrad_bytes);  // which are set to zero
    return machine_.launch + bytes / (machine_.memory_bandwidth * machine_.memory_share);
  }

  const Machine& machine_;
  const Program& program_;
  Layouts& layouts_;
  const Job& job_;
  const std::vector<double> shares_;
  const Topology topology_;
  const int64_t ranks_;
  GroupShape peers_;                                       // tensor-parallel ones
  mutable std::map<std::vector<int>, GroupShape> shapes_;  // of copies, by their devices
};

}  // namespace

Layouts::Stage& Layouts::Of(const Job& job, int stage) {
  uint32_t keep = 0;
  for (const OperatorKind kind : job.keep) keep |= uint32_t{1} << static_cast<int>(kind);
  const std::tuple key(job.tp, job.micro_batch_size, job.sequence_length, job.sequence_parallel,
                       keep, stage == 0, stage + 1 == job.stages(), job.layers_per_stage[stage]);
  const auto [found, is_new] = known_.try_emplace(key);
  if (is_new) {
    found->second.layout = LayoutStage(job, stage);
    found->second.layout.tensors = std::vector<Tensor>();
  }
  return found->second;
}

Result<CostModel> CostsOn(const Machine& machine, const Program& program) {
  Layouts layouts;
  return CostsOn(machine, program, &layouts);
}

Result<CostModel> CostsOn(const Machine& machine, const Program& program, Layouts* layouts) {
  const Dtype dtype = program.job->dtype;
  if (machine.flops[static_cast<int>(dtype)] == 0)
    return Status::Invalid(
        fmt::format("--machine: {} has no flops for --dtype {}", machine.name, NameOf(dtype)));
  CostModel costs = Pricer(machine, program, layouts).Run();
  for (const CostInfo& row : Costs())
    for (const double seconds : costs.*row.member)
      if (row.unit == Dimension::kTime && !(seconds <= row.most))
        return Status::Invalid(fmt::format("--machine: {} is too slow: {:g} seconds (at most {:g})",
                                           machine.name, seconds, row.most));
  return costs;
}

}  // namespace pp
