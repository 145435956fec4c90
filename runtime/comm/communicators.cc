#include "runtime/comm/communicators.h"

#include <algorithm>
#include <set>

namespace pp {
namespace {

class Maker {
 public:
  Maker(const Program& program, int rank, std::span<const Group> reductions)
      : topology_(TopologyOf(program)),
        rank_(rank),
        place_(topology_.PlaceOf(rank)),
        reductions_(reductions) {}

  RankCommunicator Make(const nccl::Communicator& one) {
    made_ = {};
    switch (one.key.use) {
      case nccl::Use::kMessages:
        for (const int device : one.devices) made_.members.push_back(RankOf(device));
        for (const nccl::Flow& flow : one.flows) AddMessages(flow);
        break;
      case nccl::Use::kReductions:
        for (int rank = 0; rank < topology_.ranks(); ++rank) made_.members.push_back(rank);
        for (const Group& group : reductions_) AddExchange(group, Channel::kReduce);
        break;
      case nccl::Use::kPeers:
        made_.members = topology_.PeersOf(place_);
        AddExchange(made_.members, Channel::kPeers);
        break;
    }
    return std::move(made_);
  }

 private:
  int RankOf(int device) const { return topology_.RankOf({place_.replica, device, place_.index}); }

  void AddMessages(const nccl::Flow& flow) {
    const int from = flow.members[0], to = flow.members[1];
    const Channel channel = flow.kind == Kind::kAct ? Channel::kAct : Channel::kGrad;
    if (from == place_.device) AddPort({Way::kSend, channel, RankOf(to)});
    if (to == place_.device) AddPort({Way::kRecv, channel, RankOf(from)});
  }

  void AddExchange(const Group& group, Channel channel) {
    for (const int peer : group)
      for (const Way way : {Way::kSend, Way::kRecv})
        if (peer != rank_) AddPort({way, channel, peer});
  }

  void AddPort(const Port& port) {
    std::vector<Port>& ports = made_.ports;
    if (std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }

  const Topology topology_;
  const int rank_;
  const Place place_;
  const std::span<const Group> reductions_;
  RankCommunicator made_;
};

}  // namespace

std::vector<RankCommunicator> CommunicatorsOf(const Program& program,
                                              const nccl::Sharings& sharings, int rank,
                                              std::span<const Group> reductions) {
  Maker maker(program, rank, reductions);
  const int device = TopologyOf(program).PlaceOf(rank).device;
  std::vector<RankCommunicator> made;
  for (const nccl::Communicator& one : nccl::AssignmentOf(program, sharings).communicators)
    if (one.Has(device)) made.push_back(maker.Make(one));
  return made;
}

int CountPeers(std::span<const RankCommunicator> communicators) {
  size_t count = 0;
  for (const RankCommunicator& one : communicators) {
    std::set<int> peers;
    for (const Port& port : one.ports) peers.insert(port.peer);
    count += peers.size();
  }
  return static_cast<int>(count);
}

}  // namespace pp
