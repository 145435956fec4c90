#include "schema/nccl/creation.h"

#include <unordered_map>

#include "schema/play/play.h"

namespace pp::nccl {
namespace {

// A device's first use of each communicator, in list order, as traffic of its own: all members take
// part in its creation. The names of the ends are those of the instructions.
Traffic FirstUses(const Traffic& traffic, const Assignment& assignment) {
  Traffic uses;
  uses.flows.emplace_back();
  std::vector<int32_t> of_flow(traffic.flows.size());
  std::unordered_map<int64_t, int32_t> number;
  for (size_t f = 0; f < traffic.flows.size(); ++f) {
    const Flow& flow = traffic.flows[f];
    const Communicator& one = assignment.communicators[assignment.of_flow[f]];
    // With one communicator for all messages the direction is connected, otherwise the communicator
    // is created.
    const bool connects = one.key.use == Use::kMessages && one.OfMessages() == Sharing::kAll;
    const int64_t key = connects ? (int64_t{flow.members[0]} << 32) + flow.members[1]
                                 : -1 - int64_t{assignment.of_flow[f]};
    const auto [at, is_new] = number.try_emplace(key, static_cast<int32_t>(number.size()));
    of_flow[f] = at->second;
    if (!is_new) continue;
    const auto members = static_cast<int32_t>((connects ? flow.members : one.devices).size());
    uses.transfers.push_back({0, static_cast<int32_t>(uses.ends.size()), members});
    uses.ends.resize(uses.ends.size() + members);
  }
  uses.started_by.resize(traffic.started_by.size());
  uses.joins.resize(traffic.started_by.size());  // the compute lanes wait for nothing
  std::vector<int32_t> reached(uses.transfers.size(), 0);
  for (size_t d = 0; d < traffic.started_by.size(); ++d)
    for (const int32_t e : traffic.started_by[d]) {
      const End& end = traffic.ends[e];
      const int32_t use = of_flow[traffic.transfers[end.transfer].flow];
      const int32_t at = uses.transfers[use].first_end + reached[use];
      if (reached[use] > 0 && uses.ends[at - 1].device == end.device) continue;
      ++reached[use];
      uses.ends[at] = {.transfer = use, .device = end.device, .index = end.index};
      uses.started_by[d].push_back(at);
    }
  return uses;
}

}  // namespace

Status CheckCreation(const Program& unrolled, const Traffic& traffic,
                     const Assignment& assignment) {
  const Traffic uses = FirstUses(traffic, assignment);
  const std::vector<int32_t> one_carrier(uses.flows.size(), 0);
  const Streams streams = play::MakeStreams(uses, one_carrier, Groups::kNone);
  return play::Play(unrolled, uses, streams, {}, nullptr)
      .In("where communicators are made at their first use");
}

}  // namespace pp::nccl
