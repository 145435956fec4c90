#include "compiler/machine/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "schema/model/work.h"

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
        shares_(program.Shares()) {}

  CostModel Run() const {
    CostModel costs{
        .f = {}, .b = {}, .comm = {}, .latency = {}, .post = {}, .reduce = {}, .step = {}};
    costs.seconds = true;
    costs.contention = {machine_.contention};
    for (int s = 0; s < program_.stages; ++s) {
      Layouts::Stage& stage = layouts_.Of(job_, s);
      const StageLayout& layout = stage.layout;
      if (!stage.times) {
        stage.times.emplace();
        for (const StageOperator& placed : std::exchange(stage.layout.operators, {}))
          Add(placed, &*stage.times);
      }
      const Layouts::Times& times = *stage.times;
      const double share = shares_[s];
      costs.f.push_back(times.forward / share);
      costs.r.push_back(times.recompute / share);
      costs.bi.push_back(times.input / share);
      costs.bw.push_back(times.weight / share);
      costs.b.push_back((times.input + times.weight) / share);
      costs.reduce.push_back(Reduction(s, layout) / share);
      costs.step.push_back(Step(layout) / share);
      const Link link = MessageLink(s);
      const auto bytes = static_cast<double>(layout.act_bytes);
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

  void Add(const StageOperator& placed, Layouts::Times* times) const {
    const Operator& op = placed.op;
    const StageWork work = WorkOf(op, job_);
    const double reached =
        op.kind == OperatorKind::kAttention ? machine_.attention : machine_.product;
    double forward = At(work.forward, reached), input = At(work.input, reached);
    // Peers add their parts of these outputs, and of the gradients with respect to those inputs.
    if (op.cut == Cut::kIn || (op.cut == Cut::kOut && op.kind == OperatorKind::kEmbedding))
      forward += PeersTake(op.out);
    if (op.cut == Cut::kOut && op.kind == OperatorKind::kLinear) input += PeersTake(op.in);
    times->forward += forward;
    double weight = At(work.weight, reached);
    // Each adapter is two products and a scaling, in all three; in the weight half, which makes
    // both of its inner values again and then two gradients, one launch is counted above.
    for (const Adapter& adapter : op.adapters) {
      forward += 3 * machine_.launch;
      input += 3 * machine_.launch;
      weight += 5 * machine_.launch;
      if (op.cut != Cut::kNone) weight += PeersTake(adapter.rank);
    }
    if (placed.recomputed) times->recompute += forward;
    times->input += input;
    times->weight += weight;
    if (placed.remade) times->weight += forward;
  }

  // A sum of one value per token and element over the tensor-parallel peers.
  double PeersTake(int64_t width) const {
    const double bytes = static_cast<double>(job_.tokens() * width * BytesOf(job_.dtype));
    return Collective(machine_.Between(0, job_.tp - 1), job_.tp, bytes);
  }

  static double Collective(const Link& link, int64_t members, double bytes) {
    const auto others = static_cast<double>(members - 1);
    return 2 * others * (Transfer(link, bytes / static_cast<double>(members)) + link.latency);
  }

  // The first peer's rank.
  int64_t RankOf(int64_t replica, int device) const {
    return (replica * program_.devices + device) * job_.tp;
  }

  // The slowest that a stage's messages cross.
  Link MessageLink(int stage) const {
    if (stage + 1 == program_.stages) return machine_.inside;
    // How replicas lie in nodes repeats after as many as a node has devices.
    const int64_t replicas = std::min<int64_t>(program_.replicas, machine_.node);
    for (const Pipe& pipe : program_.pipes) {
      const int from = pipe.device_of[stage], to = pipe.device_of[stage + 1];
      if (from == to) continue;
      for (int64_t replica = 0; replica < replicas; ++replica) {
        const Link& link = machine_.Between(RankOf(replica, from), RankOf(replica, to));
        if (&link == &machine_.between) return link;
      }
    }
    return machine_.inside;
  }

  double Reduction(int stage, const StageLayout& layout) const {
    const int64_t members = program_.replicas * static_cast<int64_t>(program_.pipes.size());
    int64_t first = INT64_MAX, last = 0;
    for (const Pipe& pipe : program_.pipes) {
      first = std::min(first, RankOf(0, pipe.device_of[stage]));
      last = std::max(last, RankOf(program_.replicas - 1, pipe.device_of[stage]));
    }
    return members == 1 || layout.wgrad_bytes == 0
               ? 0
               : Collective(machine_.Between(first, last), members,
                            static_cast<double>(layout.wgrad_bytes));
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
};

}  // namespace

Layouts::Stage& Layouts::Of(const Job& job, int stage) {
  const std::tuple key(job.tp, job.micro_batch_size, stage == 0, stage + 1 == job.stages(),
                       job.layers_per_stage[stage]);
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
