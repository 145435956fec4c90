#include "runtime/comm/communicators.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace pp {
namespace {

enum class Use : uint8_t { kMessages, kReductions, kPeers };

// The sort key on all ranks.
using Key = std::tuple<Use, int, int, std::array<int32_t, 4>>;  // replica and index, or device

class Finder {
 public:
  Finder(const Program& program, const nccl::Sharings& sharings, int rank)
      : program_(program),
        sharings_(sharings),
        rank_(rank),
        topology_(TopologyOf(program)),
        place_(topology_.PlaceOf(rank)) {}

  std::vector<RankCommunicator> Run(std::span<const Group> reductions) {
    const DeviceList& list = program_.lists[place_.device];
    for (const auto* instructions : {&list.body, &list.evaluation})
      for (const Instruction& i : *instructions)
        if (IsMessage(i)) AddMessage(i);
    if (Reduces() && topology_.ranks() > 1) {
      const Key key{Use::kReductions, 0, 0, {}};
      for (int rank = 0; rank < topology_.ranks(); ++rank) found_[key].members.push_back(rank);
      for (const Group& group : reductions) AddExchange(key, group, Channel::kReduce);
    }
    if (topology_.tp > 1) {
      const Key key{Use::kPeers, place_.replica, place_.device, {}};
      found_[key].members = topology_.PeersOf(place_);
      AddExchange(key, topology_.PeersOf(place_), Channel::kPeers);
    }
    std::vector<RankCommunicator> sorted;
    for (auto& [key, communicator] : found_) sorted.push_back(std::move(communicator));
    return sorted;
  }

 private:
  int RankOf(int device) const { return topology_.RankOf({place_.replica, device, place_.index}); }

  static nccl::Flow FlowOf(int device, const Instruction& i) {
    const bool sends = Info(i.op).lane == Lane::kSend;
    return {.members = {sends ? device : i.peer, sends ? i.peer : device},
            .kind = KindOfMessage(i.op)};
  }

  void AddMessage(const Instruction& i) {
    const nccl::Flow flow = FlowOf(place_.device, i);
    const nccl::Sharing sharing = sharings_.Of(flow);
    RankCommunicator& one =
        found_[{Use::kMessages, place_.replica, place_.index, KeyOf(flow, sharing)}];
    if (one.members.empty()) {
      one.members = sharing == nccl::Sharing::kAll ? MembersOfAll()
                                                   : Group{RankOf(std::min(place_.device, i.peer)),
                                                           RankOf(std::max(place_.device, i.peer))};
    }
    AddPort(&one, {Info(i.op).lane == Lane::kSend ? Way::kSend : Way::kRecv,
                   flow.kind == Kind::kAct ? Channel::kAct : Channel::kGrad, RankOf(i.peer)});
  }

  // Of the communicator for all messages.
  Group MembersOfAll() const {
    Group members;
    for (int device = 0; device < topology_.devices; ++device) {
      const DeviceList& list = program_.lists[device];
      const auto shares = [&](const Instruction& i) {
        return IsMessage(i) && sharings_.Of(FlowOf(device, i)) == nccl::Sharing::kAll;
      };
      if (std::any_of(list.body.begin(), list.body.end(), shares) ||
          std::any_of(list.evaluation.begin(), list.evaluation.end(), shares))
        members.push_back(RankOf(device));
    }
    return members;
  }

  static void AddPort(RankCommunicator* one, const Port& port) {
    if (std::find(one->ports.begin(), one->ports.end(), port) == one->ports.end())
      one->ports.push_back(port);
  }

  bool Reduces() const {
    return std::any_of(program_.lists.begin(), program_.lists.end(), [](const DeviceList& list) {
      return std::any_of(list.body.begin(), list.body.end(),
                         [](auto& i) { return Info(i.op).lane == Lane::kReduce; });
    });
  }

  void AddExchange(const Key& key, const Group& group, Channel channel) {
    for (const int peer : group)
      for (const Way way : {Way::kSend, Way::kRecv})
        if (peer != rank_) AddPort(&found_[key], {way, channel, peer});
  }

  const Program& program_;
  const nccl::Sharings& sharings_;
  const int rank_;
  const Topology topology_;
  const Place place_;
  std::map<Key, RankCommunicator> found_;
};

}  // namespace

std::vector<RankCommunicator> CommunicatorsOf(const Program& program,
                                              const nccl::Sharings& sharings, int rank,
                                              std::span<const Group> reductions) {
  return Finder(program, sharings, rank).Run(reductions);
}

}  // namespace pp
