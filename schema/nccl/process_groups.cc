#include "schema/nccl/process_groups.h"

#include <algorithm>
#include <map>
#include <utility>

namespace pp::nccl {
namespace {

void AddCollectives(const Program& program, ProcessGroups* groups) {
  auto& communicators = groups->assignment.communicators;
  std::map<std::pair<std::vector<int>, bool>, int32_t> of_members;
  for (Collective& collective : InOneOrder(FindCollectives(program))) {
    const bool over_replicas = IsOverReplicas(program, collective.instruction.op);
    int32_t at = -1;
    if (collective.members.size() > 1 || over_replicas) {
      const auto [known, is_new] = of_members.try_emplace(
          {collective.members, over_replicas}, static_cast<int32_t>(communicators.size()));
      at = known->second;
      if (is_new) {
        const auto number = static_cast<int32_t>(of_members.size());
        communicators.push_back({.key = {Use::kReductions, {number}},
                                 .devices = collective.members,
                                 .flows = {{collective.members, Kind::kNone}}});
        groups->over_replicas.push_back(over_replicas);
      }
    }
    groups->of_collective.push_back(at);
    groups->collectives.push_back(std::move(collective));
  }
}

// Each into the first round that has none of its devices.
std::vector<std::vector<int32_t>> RoundsOf(const Assignment& assignment) {
  std::vector<std::vector<int32_t>> rounds;
  std::vector<std::vector<bool>> busy;  // round -> device
  for (size_t c = 0; c < assignment.communicators.size(); ++c) {
    const std::vector<int32_t>& devices = assignment.communicators[c].devices;
    const auto is_free = [&](const std::vector<bool>& used) {
      return std::none_of(devices.begin(), devices.end(), [&](int32_t d) {
        return static_cast<size_t>(d) < used.size() && used[d];
      });
    };
    const size_t round = std::find_if(busy.begin(), busy.end(), is_free) - busy.begin();
    if (round == rounds.size()) rounds.emplace_back(), busy.emplace_back();
    rounds[round].push_back(static_cast<int32_t>(c));
    busy[round].resize(std::max<size_t>(busy[round].size(), devices.back() + 1));
    for (const int32_t d : devices) busy[round][d] = true;
  }
  return rounds;
}

}  // namespace

ProcessGroups ProcessGroupsOf(const Program& program, const Sharings& sharings,
                              StreamPer stream_per) {
  ProcessGroups groups;
  Assignment known = AssignmentOf(program, sharings);  // messages, reductions, peers
  for (const Use use : {Use::kMessages, Use::kReductions, Use::kPeers}) {
    if (use == Use::kReductions) AddCollectives(program, &groups);
    for (Communicator& one : known.communicators)
      if (use != Use::kReductions && one.key.use == use) {
        groups.assignment.communicators.push_back(std::move(one));
        groups.over_replicas.push_back(false);
      }
  }
  groups.rounds = RoundsOf(groups.assignment);
  groups.most = MostUsed(groups.assignment, stream_per);
  return groups;
}

}  // namespace pp::nccl
