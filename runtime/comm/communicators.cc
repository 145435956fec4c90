#include "runtime/comm/communicators.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace pp {
namespace {

enum class Use : uint8_t { kMessages, kReductions, kPeers };

// All ranks sort by it.
using Key = std::tuple<Use, int, int, std::array<int32_t, 4>>;  // replica and index, or device

class Finder {
 public:
  Finder(const Program& program, const nccl::Sharings& sharings, int rank)
      : program_(program),
        sharings_(sharings),
        rank_(rank),
        topology_(TopologyOf(program)),
        place_(topology_.PlaceOf(rank)) {}

  std::vector<RankCommunicator> Run() {
    const DeviceList& list = program_.lists[place_.device];
    for (const auto* instructions : {&list.body, &list.evaluation})
      for (const Instruction& i : *instructions)
        if (IsMessage(i)) AddMessage(i);
    if (Reduces()) AddExchange({Use::kReductions, 0, 0, {}}, AllRanks(), Channel::kReduce);
    if (topology_.tp > 1)
      AddExchange({Use::kPeers, place_.replica, place_.device, {}}, Peers(), Channel::kPeers);
    std::vector<RankCommunicator> sorted;
    for (auto& [key, communicator] : found_) sorted.push_back(std::move(communicator));
    return sorted;
  }

 private:
  int RankOf(int device) const { return topology_.RankOf({place_.replica, device, place_.index}); }

  void AddMessage(const Instruction& i) {
    const bool sends = Info(i.op).lane == Lane::kSend;
    const bool act = i.op == Op::kSendAct || i.op == Op::kRecvAct;
    const nccl::Flow flow{
        .members = {sends ? place_.device : i.peer, sends ? i.peer : place_.device},
        .kind = act ? Kind::kAct : Kind::kGrad};
    const nccl::Sharing sharing = sharings_.Of(flow);
    RankCommunicator& one =
        found_[{Use::kMessages, place_.replica, place_.index, KeyOf(flow, sharing)}];
    if (one.members.empty()) {
      if (sharing == nccl::Sharing::kAll) {
        for (int device = 0; device < topology_.devices; ++device)
          one.members.push_back(RankOf(device));
      } else {
        one.members = {RankOf(std::min(place_.device, i.peer)),
                       RankOf(std::max(place_.device, i.peer))};
      }
    }
    const Port port{sends ? Way::kSend : Way::kRecv, act ? Channel::kAct : Channel::kGrad,
                    RankOf(i.peer)};
    if (std::find(one.ports.begin(), one.ports.end(), port) == one.ports.end())
      one.ports.push_back(port);
  }

  bool Reduces() const {
    return std::any_of(program_.lists.begin(), program_.lists.end(), [](const DeviceList& list) {
      return std::any_of(list.body.begin(), list.body.end(),
                         [](auto& i) { return Info(i.op).lane == Lane::kReduce; });
    });
  }

  Group AllRanks() const {
    Group all;
    for (int rank = 0; rank < topology_.ranks(); ++rank) all.push_back(rank);
    return all;
  }
  Group Peers() const {
    Group peers;
    for (int index = 0; index < topology_.tp; ++index)
      peers.push_back(topology_.RankOf({place_.replica, place_.device, index}));
    return peers;
  }

  // Everybody with everybody.
  void AddExchange(const Key& key, Group members, Channel channel) {
    if (members.size() == 1) return;
    RankCommunicator& one = found_[key];
    for (const int peer : members)
      for (const Way way : {Way::kSend, Way::kRecv})
        if (peer != rank_) one.ports.push_back({way, channel, peer});
    one.members = std::move(members);
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
                                              const nccl::Sharings& sharings, int rank) {
  return Finder(program, sharings, rank).Run();
}

}  // namespace pp
