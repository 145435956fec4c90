// Who is in which collective: all ranks' collectives of a plan are bound and compared.
#include "runtime/plan/bind_collective.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>

#include "compiler/compile.h"
#include "runtime/model/parameters.h"
#include "runtime/plan/binding.h"
#include "schema/semantics/buckets.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// Large enough for a tensor of several norm blocks.
Program PlanOf(CompileOptions options) {
  ModelConfig model = Gpt2Model({.vocab_size = 700,
                                 .max_positions = 8,
                                 .hidden_size = 128,
                                 .layers = 4,
                                 .heads = 2,
                                 .intermediate_size = 1024});
  options.job.model = model;
  return MustCompile(options);
}

// Addresses only: nothing is computed here.
class NoDevice : public Device {
 public:
  Status Allocate(int64_t) override { return {}; }
  std::byte* at(int64_t offset) const override {
    return reinterpret_cast<std::byte*>(kAlign + offset);
  }
  int64_t HighWater() const override { return 0; }
  Queue& compute() override { return *none_; }
  Queue& reduce() override { return *none_; }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs&) override { return nullptr; }
  void Finish() override {}

 private:
  Queue* none_ = nullptr;
};

// What identifies one collective, besides its members.
using Name = std::tuple<Op, int, int>;  // stage, bucket

struct Bound {
  Instruction instruction;
  CollectiveArgs args;
};

// All ranks, each with its memory and its collectives.
struct Ranks {
  explicit Ranks(Program compiled)
      : program(std::move(compiled)), topology(TopologyOf(program)), bound(topology.ranks()) {
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const DeviceList& list = program.lists[topology.PlaceOf(rank).device];
      for (const Instruction& i : list.body)
        if (Info(i.op).lane == Lane::kReduce)
          bound[rank].push_back({i, BindCollective(program, topology, rank, i, memory)});
    }
  }

  // By name, and by group if several groups are under one name (norms of replicas).
  std::map<std::pair<Name, Group>, std::vector<const Bound*>> Meetings() const {
    std::map<std::pair<Name, Group>, std::vector<const Bound*>> meetings;
    for (const auto& of_rank : bound)
      for (const Bound& b : of_rank)
        meetings[{{b.instruction.op, b.instruction.stage, b.instruction.bucket}, b.args.group}]
            .push_back(&b);
    return meetings;
  }

  Program program;
  Topology topology;
  NoDevice memory;
  std::vector<std::vector<Bound>> bound;  // by rank
};

// The shards of all members, one after the other, without gaps or overlaps.
ByteRange Tiled(const CollectiveArgs& args) {
  std::vector<ByteRange> all;
  for (const auto& shard : args.shards)
    for (const ByteRange& range : shard)
      if (range.bytes > 0) all.push_back(range);
  std::sort(all.begin(), all.end(),
            [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  REQUIRE(!all.empty());
  ByteRange whole{all[0].begin, 0};
  for (const ByteRange& range : all) {
    CHECK(range.begin == whole.begin + whole.bytes);
    whole.bytes += range.bytes;
  }
  return whole;
}

ByteRange Expected(const Program& program, const Instruction& i) {
  if (i.op == Op::kReduceNorm)
    return {0, NormBlocks(*program.job) * static_cast<int64_t>(sizeof(double))};
  if (i.op == Op::kReduceTied) return {0, LayoutStage(*program.job, 0).tied_bytes};
  const Bucket bucket = BucketsOf(program, i.stage)[i.bucket];
  return {bucket.begin, bucket.bytes};
}

CollectiveKind KindOf(const Program& program, Op op) {
  switch (op) {
    case Op::kScatterGrad:
      return CollectiveKind::kReduceScatter;
    case Op::kGatherWeights:
    case Op::kReduceNorm:
      return CollectiveKind::kAllGather;
    default:
      CHECK((op == Op::kReduceTied || (op == Op::kReduceGrad && program.zero == 0)));
      return CollectiveKind::kAllReduce;
  }
}

// Calls f(ranks) for plans of all kinds.
template <typename F>
void ForAll(const F& f) {
  for (const char* scheme : {"1f1b", "chimera", "dualpipe", "interleaved"})
    for (int replicas : {1, 2, 3})
      for (int zero : {0, 1}) {
        INFO(scheme << " dp " << replicas << " zero " << zero);
        for (const RankOrder order : {RankOrder::kTpPpDp, RankOrder::kTpDpPp})
          f(Ranks(PlanOf({.scheme = scheme,
                          .shape = {2, 4},
                          .replicas = replicas,
                          .zero = zero,
                          .rank_order = order})));
      }
}

// Norm blocks that a rank's NORM_grads compute, in bytes of the norm.
std::set<int64_t> BlocksMadeBy(const Ranks& ranks, int rank) {
  const Program& program = ranks.program;
  const Place place = ranks.topology.PlaceOf(rank);
  std::set<int64_t> made;
  for (const Instruction& i : program.lists[place.device].body) {
    if (i.op != Op::kNormGrad) continue;
    const StageLayout layout = LayoutStage(*program.job, i.stage);
    const int64_t copy =
        place.replica * static_cast<int64_t>(program.pipes.size()) + std::max<int>(i.pipe, 0);
    const bool sharded = program.zero == 1 && program.Copies() > 1;
    const auto parts =
        sharded ? PartsOfShards(layout, OptimizerShardsOf(layout, BucketsOf(program, i.stage),
                                                          program.Copies(), copy))
                : AllParts(layout);
    for (const OwnedPart& owned : parts)
      for (int64_t b = 0; b < owned.part.blocks(); ++b)
        made.insert(8 * (layout.first_norm_block + owned.part.first_block() + b));
  }
  return made;
}

}  // namespace

TEST_CASE("a rank is its place, and back") {
  const Topology topology{.replicas = 3, .devices = 4, .tp = 2};
  CHECK(topology.ranks() == 24);
  int rank = 0;
  for (int replica = 0; replica < 3; ++replica)
    for (int device = 0; device < 4; ++device)
      for (int index = 0; index < 2; ++index, ++rank) {
        CHECK(topology.RankOf({replica, device, index}) == rank);
        CHECK(topology.PlaceOf(rank) == Place{replica, device, index});
      }
}

TEST_CASE("so it is where the replicas of a device are neighbours") {
  const Topology topology{.replicas = 3, .devices = 4, .tp = 2, .order = RankOrder::kTpDpPp};
  int rank = 0;
  for (int device = 0; device < 4; ++device)
    for (int replica = 0; replica < 3; ++replica)
      for (int index = 0; index < 2; ++index, ++rank) {
        CHECK(topology.RankOf({replica, device, index}) == rank);
        CHECK(topology.PlaceOf(rank) == Place{replica, device, index});
      }
  CHECK(topology.PeersOf({.replica = 1, .device = 2}) == Group{14, 15});
  CHECK(topology.RanksOf(1) == Group{2, 3, 8, 9, 14, 15, 20, 21});
  const Topology small{.replicas = 2, .devices = 3, .order = RankOrder::kTpDpPp};
  CHECK(small.AllRanks() == Group{0, 2, 4, 1, 3, 5});
  CHECK(Topology{.replicas = 2, .devices = 3}.AllRanks() == Group{0, 1, 2, 3, 4, 5});
}

TEST_CASE("copies of a stage stand in the order of replicas, then pipes") {
  const Program chimera = PlanOf({.scheme = "chimera", .shape = {2, 4}, .replicas = 2});
  const Topology topology = TopologyOf(chimera);
  CHECK(topology.ranks() == 4);
  CHECK(CopiesOf(chimera, topology, 0, 0) == Group{0, 1, 2, 3});
  CHECK(CopiesOf(chimera, topology, 1, 0) == Group{1, 0, 3, 2});
  CHECK(CopiesOf(chimera, {.replicas = 2, .devices = 2, .tp = 2}, 1, 1) == Group{3, 1, 7, 5});
  const Topology other{.replicas = 2, .devices = 2, .order = RankOrder::kTpDpPp};
  CHECK(CopiesOf(chimera, other, 1, 0) == Group{2, 0, 3, 1});
}

TEST_CASE("all members of a collective are there, and agree on kind, group and shards") {
  ForAll([](const Ranks& ranks) {
    for (const auto& [name, members] : ranks.Meetings()) {
      INFO(ToText(members[0]->instruction));
      const Group& group = name.second;
      std::set<int> there;
      for (const Bound* member : members) {
        there.insert(member->args.rank);
        CHECK(member->args.kind == KindOf(ranks.program, member->instruction.op));
        CHECK(member->args.shards == members[0]->args.shards);
      }
      CHECK(members.size() == group.size());
      CHECK(there == std::set<int>(group.begin(), group.end()));
      CHECK(there.size() == group.size());
      CHECK(members[0]->args.shards.size() == group.size());
      CHECK(Tiled(members[0]->args) == Expected(ranks.program, members[0]->instruction));
    }
  });
}

// If several groups share a name each rank is in one of them.
TEST_CASE("nobody is left out") {
  ForAll([](const Ranks& ranks) {
    for (int stage = 0; stage < ranks.program.stages; ++stage) {
      const Group copies = CopiesOf(ranks.program, ranks.topology, stage, 0);
      if (ranks.program.Copies() == 1) return;
      const int buckets = CountReduced(BucketsOf(ranks.program, stage));
      for (const int rank : copies)
        CHECK(
            std::count_if(ranks.bound[rank].begin(), ranks.bound[rank].end(), [&](const Bound& b) {
              return (b.instruction.op == Op::kReduceGrad ||
                      b.instruction.op == Op::kScatterGrad) &&
                     b.instruction.stage == stage;
            }) == buckets);
    }
  });
}

TEST_CASE("each norm block has one owner in a group, which made it") {
  ForAll([](const Ranks& ranks) {
    for (const auto& [name, members] : ranks.Meetings()) {
      if (std::get<0>(name.first) != Op::kReduceNorm) continue;
      std::map<int64_t, int> owner;
      const CollectiveArgs& args = members[0]->args;
      for (size_t k = 0; k < args.group.size(); ++k) {
        const std::set<int64_t> made = BlocksMadeBy(ranks, args.group[k]);
        for (const ByteRange& range : args.shards[k])
          for (int64_t at = range.begin; at < range.begin + range.bytes; at += 8) {
            CHECK(owner.try_emplace(at, args.group[k]).second);
            CHECK(made.count(at) == 1);
          }
      }
      CHECK(static_cast<int64_t>(owner.size()) == NormBlocks(*ranks.program.job));
    }
  });
}

// If every replica has all gradients, none asks another one for its squares.
TEST_CASE("a norm's group is one replica, or all where gradients are spread over them") {
  ForAll([](const Ranks& ranks) {
    const bool sharded = ranks.program.zero == 1 && ranks.program.Copies() > 1;
    for (const auto& [name, members] : ranks.Meetings())
      if (std::get<0>(name.first) == Op::kReduceNorm)
        CHECK(members.size() ==
              static_cast<size_t>(sharded ? ranks.topology.ranks() : ranks.topology.devices));
  });
}

TEST_CASE("what a member brings lies where the plan says") {
  ForAll([](const Ranks& ranks) {
    for (int rank = 0; rank < ranks.topology.ranks(); ++rank) {
      const int device = ranks.topology.PlaceOf(rank).device;
      const DeviceList& list = ranks.program.lists[device];
      const Region* exchange = FindRegion(list, Kind::kExchange, -1, -1);
      for (const Bound& b : ranks.bound[rank]) {
        INFO("rank " << rank << " " << ToText(b.instruction));
        if (b.instruction.stage >= 0) {
          const StageCall call = BindStage(ranks.program, device, b.instruction.stage,
                                           std::max<int>(b.instruction.pipe, 0), ranks.memory);
          CHECK(b.args.value ==
                (b.instruction.op == Op::kGatherWeights ? call.weights : call.wgrad));
          CHECK(b.args.second == nullptr);
        }
        if (b.args.kind == CollectiveKind::kAllGather || b.args.group.size() == 1) continue;
        int64_t largest = 0;
        const size_t me =
            std::find(b.args.group.begin(), b.args.group.end(), rank) - b.args.group.begin();
        for (const ByteRange& range : b.args.shards[me])
          largest = std::max(largest, std::min(range.bytes, b.args.piece));
        if (largest == 0) continue;
        REQUIRE(exchange != nullptr);
        CHECK(b.args.exchange == ranks.memory.at(exchange->offset));
        const int64_t slot = (largest + kAlign - 1) / kAlign * kAlign;
        const auto others = static_cast<int64_t>(b.args.group.size()) - 1;
        CHECK((others - 1) * slot + largest <= exchange->bytes);
      }
    }
  });
}

TEST_CASE("tied embeddings: look-ups before heads, and a device with both brings both") {
  const Ranks two(PlanOf({.scheme = "1f1b", .shape = {2, 4}, .replicas = 2}));
  const Ranks one(PlanOf({.scheme = "chimera", .shape = {2, 4}}));
  auto tied = [](const Ranks& ranks, int rank) -> const CollectiveArgs& {
    for (const Bound& b : ranks.bound[rank])
      if (b.instruction.op == Op::kReduceTied) return b.args;
    FAIL("no REDUCE_tied");
    return ranks.bound[0][0].args;
  };
  auto at = [](const Ranks& ranks, int rank, int stage, int pipe) {
    const StageLayout layout = LayoutStage(*ranks.program.job, stage);
    return BindStage(ranks.program, ranks.topology.PlaceOf(rank).device, stage, pipe, ranks.memory)
               .wgrad +
           (stage == 0 ? layout.tied_lookup : layout.tied_head);
  };
  CHECK(tied(two, 0).group == Group{0, 2, 1, 3});
  CHECK(tied(two, 2).value == at(two, 2, 0, 0));
  CHECK(tied(two, 3).value == at(two, 3, 1, 0));
  CHECK(tied(two, 3).second == nullptr);
  // Device 0 has stage 0 of pipe 0 and stage 1 of pipe 1, device 1 the others.
  CHECK(tied(one, 0).group == Group{0, 1});
  CHECK(tied(one, 0).value == at(one, 0, 0, 0));
  CHECK(tied(one, 0).second == at(one, 0, 1, 1));
  CHECK(tied(one, 1).value == at(one, 1, 0, 1));
  CHECK(tied(one, 1).second == at(one, 1, 1, 0));
}

}  // namespace pp
