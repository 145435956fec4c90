#include "runtime/plan/bind_collective.h"

#include <algorithm>
#include <utility>

#include "runtime/plan/binding.h"
#include "schema/semantics/buckets.h"

namespace pp {
namespace {

class Binder {
 public:
  Binder(const Program& program, const Topology& topology, int rank, const Device& memory)
      : program_(program),
        topology_(topology),
        place_(topology.PlaceOf(rank)),
        list_(program.lists[place_.device]),
        memory_(memory) {
    args_.rank = rank;
    args_.piece = MostExchangePiece(program.job->backend);
    if (const Region* exchange = FindRegion(list_, Kind::kExchange, -1, -1))
      args_.exchange = memory.at(exchange->offset);
  }

  CollectiveArgs Run(const Instruction& i) {
    switch (i.op) {
      case Op::kReduceGrad:
        OverCopies(CollectiveKind::kAllReduce, i, Kind::kWgrad);
        break;
      case Op::kScatterGrad:
        OverCopies(CollectiveKind::kReduceScatter, i, Kind::kWgrad);
        break;
      case Op::kGatherWeights:
        OverCopies(CollectiveKind::kAllGather, i, Kind::kWeights);
        break;
      case Op::kReduceTied:
        Tied();
        break;
      case Op::kReduceNorm:
        Norm();
        break;
      case Op::kLoad:
      case Op::kForward:
      case Op::kForwardDrop:
      case Op::kRecompute:
      case Op::kBackward:
      case Op::kBackwardInput:
      case Op::kBackwardWeight:
      case Op::kSendAct:
      case Op::kRecvAct:
      case Op::kSendGrad:
      case Op::kRecvGrad:
      case Op::kWait:
      case Op::kNormGrad:
      case Op::kStep:
      case Op::kEvaluate:
        PP_CHECK(false);
    }
    return std::move(args_);
  }

 private:
  StageLayout Layout(int stage) const { return LayoutStage(*program_.job, stage); }
  int64_t copies() const { return program_.Copies(); }

  std::byte* RegionAt(Kind kind, int stage, int pipe) const {
    const Region* region = FindRegion(list_, kind, stage, pipe);
    PP_CHECK(region != nullptr);
    return memory_.at(region->offset);
  }

  // A bucket of a stage's gradients or weights, cut as ZeRO-1 cuts it.
  void OverCopies(CollectiveKind kind, const Instruction& i, Kind states) {
    const StageLayout layout = Layout(i.stage);
    const Bucket bucket = BucketsOf(program_, i.stage)[i.bucket];
    args_.kind = kind;
    args_.group = CopiesOf(program_, topology_, i.stage, place_.index);
    args_.value = RegionAt(states, i.stage, std::max<int>(i.pipe, 0));
    if (states == Kind::kWeights) args_.value += layout.trained;
    for (int64_t copy = 0; copy < copies(); ++copy) {
      const Bucket shard = ShardOf(layout, bucket, copies(), copy);
      args_.shards.push_back({{shard.begin, shard.bytes}});
    }
  }

  // The tied embedding's gradients: first those of all look-ups, then those of all heads.
  void Tied() {
    const int last = program_.stages - 1;
    args_.kind = CollectiveKind::kAllReduce;
    for (const int stage : {0, last})
      for (const int rank : CopiesOf(program_, topology_, stage, place_.index))
        if (std::find(args_.group.begin(), args_.group.end(), rank) == args_.group.end())
          args_.group.push_back(rank);
    for (size_t pipe = 0; pipe < program_.pipes.size(); ++pipe) {
      const std::vector<int32_t>& device_of = program_.pipes[pipe].device_of;
      if (device_of[0] == place_.device) AddTied(0, pipe, Layout(0).tied_lookup);
      if (device_of[last] == place_.device) AddTied(last, pipe, Layout(last).tied_head);
    }
    const int64_t bytes = Layout(0).tied_bytes;
    args_.shards = EqualShards(bytes, static_cast<int64_t>(args_.group.size()), kAlign);
  }
  void AddTied(int stage, size_t pipe, int64_t offset) {
    std::byte* part = RegionAt(Kind::kWgrad, stage, static_cast<int>(pipe)) + offset;
    if (args_.value == nullptr) {
      args_.value = part;
    } else {  // the look-up's part goes first, whichever pipe it is in
      args_.second = stage == 0 ? std::exchange(args_.value, part) : part;
    }
  }

  // The norm's blocks of the whole model, each computed by one rank: by the copy in pipe 0 of its
  // replica or, under ZeRO-1, by the one whose shard has it.
  void Norm() {
    const bool sharded = program_.zero == 1 && copies() > 1;
    args_.kind = CollectiveKind::kAllGather;
    args_.value = RegionAt(Kind::kNorm, -1, -1);
    args_.group = sharded ? topology_.AllRanks() : topology_.RanksOf(place_.replica);
    args_.shards.resize(args_.group.size());
    const int64_t of_peer = NormBlocks(*program_.job) / topology_.tp;
    for (int index = 0; index < topology_.tp; ++index)
      for (int stage = 0; stage < program_.stages; ++stage) {
        if (sharded) {
          AddShardsOf(stage, index, index * of_peer);
        } else {
          const StageLayout layout = Layout(stage);
          AddBlocks(program_.pipes[0].device_of[stage] * topology_.tp + index,
                    index * of_peer + layout.first_norm_block, layout.norm_blocks);
        }
      }
  }
  void AddShardsOf(int stage, int index, int64_t first) {
    const StageLayout layout = Layout(stage);
    const Group group = CopiesOf(program_, topology_, stage, index);
    for (const Bucket& bucket : BucketsOf(program_, stage))
      for (int64_t copy = 0; copy < copies(); ++copy)
        for (const TensorPart& part : PartsIn(layout, ShardOf(layout, bucket, copies(), copy)))
          AddBlocks(
              std::find(args_.group.begin(), args_.group.end(), group[copy]) - args_.group.begin(),
              first + layout.first_norm_block + part.first_block(), part.blocks());
  }
  void AddBlocks(size_t member, int64_t first, int64_t count) {
    constexpr int64_t kSize = sizeof(double);
    if (count == 0) return;
    std::vector<ByteRange>& ranges = args_.shards[member];
    if (!ranges.empty() && ranges.back().begin + ranges.back().bytes == first * kSize) {
      ranges.back().bytes += count * kSize;
    } else {
      ranges.push_back({first * kSize, count * kSize});
    }
  }

  const Program& program_;
  const Topology& topology_;
  const Place place_;
  const DeviceList& list_;
  const Device& memory_;
  CollectiveArgs args_;
};

}  // namespace

Group CopiesOf(const Program& program, const Topology& topology, int stage, int tp_index) {
  Group group;
  for (int replica = 0; replica < topology.replicas; ++replica)
    for (const Pipe& pipe : program.pipes)
      group.push_back(topology.RankOf({replica, pipe.device_of[stage], tp_index}));
  return group;
}

CollectiveArgs BindCollective(const Program& program, const Topology& topology, int rank,
                              const Instruction& instruction, const Device& memory) {
  return Binder(program, topology, rank, memory).Run(instruction);
}

std::vector<CollectiveArgs> BindCollectives(const Program& program, const Topology& topology,
                                            int rank, const Device& memory) {
  std::vector<CollectiveArgs> collectives;
  for (const Instruction& i : program.lists[topology.PlaceOf(rank).device].body)
    if (Info(i.op).lane == Lane::kReduce)
      collectives.push_back(BindCollective(program, topology, rank, i, memory));
  return collectives;
}

}  // namespace pp
