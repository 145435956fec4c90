#include "schema/nccl/streams.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

namespace pp {
namespace {

constexpr CommunicatorsInfo kCommunicators[] = {
    {Communicators::kAll, "all", "one for all messages"},
    {Communicators::kPair, "pair", "one per pair of devices"},
    {Communicators::kDirection, "direction", "one per pair of devices and direction"},
    {Communicators::kKind, "kind", "one per pair of devices, direction and kind (act, grad)"},
};

// Flows with one key share a communicator.
std::array<int32_t, 3> KeyOf(const Flow& flow, Communicators communicators) {
  const int32_t from = flow.members[0], to = flow.members[1];
  switch (communicators) {
    case Communicators::kAll:
      return {};
    case Communicators::kPair:
      return {std::min(from, to), std::max(from, to), 0};
    case Communicators::kDirection:
      return {from, to, 0};
    case Communicators::kKind:
      return {from, to, static_cast<int32_t>(flow.kind)};
  }
  return {};
}

}  // namespace

std::span<const CommunicatorsInfo> AllCommunicators() { return kCommunicators; }
const CommunicatorsInfo& Info(Communicators communicators) {
  return kCommunicators[static_cast<size_t>(communicators)];
}

Assignment Assign(const Traffic& traffic, Communicators communicators) {
  Assignment assignment{.communicators = communicators};
  assignment.of_flow.resize(traffic.flows.size());
  std::map<std::array<int32_t, 3>, int32_t> number;
  for (size_t f = 0; f < traffic.flows.size(); ++f)
    if (!traffic.flows[f].IsCollective())
      assignment.of_flow[f] = number
                                  .try_emplace(KeyOf(traffic.flows[f], communicators),
                                               static_cast<int32_t>(number.size()))
                                  .first->second;
  assignment.messages = static_cast<int>(number.size());
  for (size_t f = 0; f < traffic.flows.size(); ++f)
    if (traffic.flows[f].IsCollective())
      assignment.of_flow[f] = assignment.messages + assignment.collectives++;
  return assignment;
}

int Streams::MostOnADevice() const {
  size_t most = 0;
  for (const auto& streams : of_device) most = std::max(most, streams.size());
  return static_cast<int>(most);
}

Streams MakeStreams(const Traffic& traffic, const Assignment& assignment, Groups groups) {
  Streams streams;
  streams.of_device.resize(traffic.started_by.size());
  for (size_t d = 0; d < traffic.started_by.size(); ++d) {
    std::unordered_map<int32_t, int32_t> stream_of;  // communicator -> stream of this device
    std::vector<int32_t> run_of;       // stream of this device -> the run that its last end is in
    int32_t run = 0, last_index = -1;  // a run: messages without other instructions between them
    for (const int32_t e : traffic.started_by[d]) {
      const End& end = traffic.ends[e];
      const int32_t flow = traffic.transfers[end.transfer].flow;
      const bool adjacent = groups == Groups::kAdjacent && end.index == last_index + 1 &&
                            !traffic.flows[flow].IsCollective();
      if (!adjacent) ++run;
      last_index = traffic.flows[flow].IsCollective() ? -1 : end.index;
      const auto [at, is_new] =
          stream_of.try_emplace(assignment.of_flow[flow], static_cast<int32_t>(run_of.size()));
      if (is_new) {
        streams.of_device[d].push_back(static_cast<int32_t>(streams.all.size()));
        streams.all.push_back({static_cast<int32_t>(d), {}, {}});
        run_of.push_back(-1);
      }
      Stream& stream = streams.all[streams.of_device[d][at->second]];
      if (run_of[at->second] != run)
        stream.begins.push_back(static_cast<int32_t>(stream.ends.size()));
      run_of[at->second] = run;
      stream.ends.push_back(e);
    }
    for (const int32_t s : streams.of_device[d])
      streams.all[s].begins.push_back(static_cast<int32_t>(streams.all[s].ends.size()));
  }
  return streams;
}

}  // namespace pp
