#include "schema/nccl/communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/routines.h"

namespace pp::nccl {
namespace {

constexpr SharingInfo kSharings[] = {
    {Sharing::kAll, "all", "for all messages"},
    {Sharing::kPair, "pair", "for a pair of devices"},
    {Sharing::kDirection, "direction", "for one direction of a pair of devices"},
    {Sharing::kKind, "kind", "for act or grad in one direction of a pair of devices"},
};

int PeersOf(const Program& program) { return program.job ? program.job->tp : 1; }

// Those of all routines of a device: of messages the ones that it sends, as the other end
// has the others.
void AddFlows(const Program& program, int device, std::vector<Flow>* flows) {
  const DeviceList& list = program.lists[device];
  std::vector<std::pair<Op, int32_t>> seen;  // few
  ForEachList(list, [&](const std::vector<Instruction>& instructions) {
    for (const Instruction& i : instructions) {
      if (Info(i.op).lane != Lane::kSend) continue;
      if (std::find(seen.begin(), seen.end(), std::pair(i.op, i.peer)) != seen.end()) continue;
      seen.emplace_back(i.op, i.peer);
      flows->push_back({{device, i.peer}, KindOfMessage(i.op)});
    }
  });
}

bool Reduces(const Program& program) {
  return std::any_of(program.lists.begin(), program.lists.end(), [](const DeviceList& list) {
    return std::any_of(list.body.begin(), list.body.end(),
                       [](const auto& i) { return Info(i.op).lane == Lane::kReduce; });
  });
}

}  // namespace

std::span<const SharingInfo> AllSharings() { return kSharings; }
const SharingInfo& Info(Sharing sharing) { return kSharings[static_cast<size_t>(sharing)]; }

Sharing Sharings::Of(const Flow& flow) const {
  const auto at = finer.find({flow.members[0], flow.members[1]});
  return at == finer.end() ? most : at->second;
}

Key KeyOf(const Flow& flow, const Sharings& sharings) {
  if (flow.IsCollective()) return {Use::kReductions};
  const int32_t from = flow.members[0], to = flow.members[1];
  const Sharing sharing = sharings.Of(flow);
  const auto level = static_cast<int32_t>(sharing);
  switch (sharing) {
    case Sharing::kAll:
      return {Use::kMessages, {level}};
    case Sharing::kPair:
      return {Use::kMessages, {level, std::min(from, to), std::max(from, to)}};
    case Sharing::kDirection:
      return {Use::kMessages, {level, from, to}};
    case Sharing::kKind:
      return {Use::kMessages, {level, from, to, static_cast<int32_t>(flow.kind)}};
  }
  return {};
}

bool Communicator::Has(int device) const {
  return std::binary_search(devices.begin(), devices.end(), device);
}

int Assignment::Count(Use use) const {
  return static_cast<int>(std::count_if(communicators.begin(), communicators.end(),
                                        [&](const auto& one) { return one.key.use == use; }));
}

Assignment Assign(std::span<const Flow> flows, const Sharings& sharings) {
  Assignment assignment;
  std::map<Key, int32_t> number;
  for (const Flow& flow : flows) number.emplace(KeyOf(flow, sharings), 0);
  for (auto& [key, at] : number) {
    at = static_cast<int32_t>(assignment.communicators.size());
    assignment.communicators.push_back({.key = key, .devices = {}, .flows = {}});
  }
  for (const Flow& flow : flows) {
    const int32_t at = number[KeyOf(flow, sharings)];
    assignment.of_flow.push_back(at);
    Communicator& one = assignment.communicators[at];
    one.flows.push_back(flow);
    one.devices.insert(one.devices.end(), flow.members.begin(), flow.members.end());
  }
  for (Communicator& one : assignment.communicators) {
    std::sort(one.devices.begin(), one.devices.end());
    one.devices.erase(std::unique(one.devices.begin(), one.devices.end()), one.devices.end());
  }
  return assignment;
}

Assignment AssignmentOf(const Program& program, const Sharings& sharings) {
  std::vector<Flow> flows;
  for (int d = 0; d < program.devices; ++d) AddFlows(program, d, &flows);
  const int ranks_of_device = program.replicas * PeersOf(program);
  if (program.devices * ranks_of_device > 1 && Reduces(program)) {
    Flow& reductions = flows.emplace_back();
    for (int d = 0; d < program.devices; ++d) reductions.members.push_back(d);
  }
  Assignment assignment = Assign(flows, sharings);
  for (int d = 0; PeersOf(program) > 1 && d < program.devices; ++d)
    assignment.communicators.push_back({.key = {Use::kPeers, {d}}, .devices = {d}, .flows = {}});
  return assignment;
}

Streams MakeStreams(const Traffic& traffic, const Layout& layout) {
  if (layout.stream_per == StreamPer::kDevice)
    return play::MakeStreams(traffic, std::vector<int32_t>(traffic.flows.size(), 0), layout.groups);
  return play::MakeStreams(traffic, Assign(traffic.flows, layout.sharings).of_flow, layout.groups);
}

std::string ToText(const Assignment& assignment) {
  const int all = assignment.Count(Use::kMessages);
  std::string text = fmt::format("{} communicator{}", all, all == 1 ? "" : "s");
  const char* joint = ", ";
  for (const SharingInfo& info : kSharings) {
    const auto count = std::count_if(
        assignment.communicators.begin(), assignment.communicators.end(), [&](const auto& one) {
          return one.key.use == Use::kMessages && one.OfMessages() == info.sharing;
        });
    if (count == 0) continue;
    if (count == all) return text + (all == 1 ? " " : ", each ") + std::string(info.meaning);
    text += fmt::format("{}{} {}", std::exchange(joint, " and "), count, info.meaning);
  }
  return text;
}

}  // namespace pp::nccl
