#include "schema/nccl/communicators.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace pp::nccl {
namespace {

constexpr SharingInfo kSharings[] = {
    {Sharing::kAll, "all", "for all messages"},
    {Sharing::kPair, "pair", "for a pair of devices"},
    {Sharing::kDirection, "direction", "for one direction of a pair of devices"},
    {Sharing::kKind, "kind", "for act or grad in one direction of a pair of devices"},
};

}  // namespace

std::span<const SharingInfo> AllSharings() { return kSharings; }
const SharingInfo& Info(Sharing sharing) { return kSharings[static_cast<size_t>(sharing)]; }

std::array<int32_t, 4> KeyOf(const Flow& message, Sharing sharing) {
  const int32_t from = message.members[0], to = message.members[1];
  const auto level = static_cast<int32_t>(sharing);
  switch (sharing) {
    case Sharing::kAll:
      return {level};
    case Sharing::kPair:
      return {level, std::min(from, to), std::max(from, to)};
    case Sharing::kDirection:
      return {level, from, to};
    case Sharing::kKind:
      return {level, from, to, static_cast<int32_t>(message.kind)};
  }
  return {};
}

Sharing Sharings::Of(const Flow& flow) const {
  const auto at = finer.find({flow.members[0], flow.members[1]});
  return at == finer.end() ? most : at->second;
}

int Assignment::Messages() const {
  return static_cast<int>(std::count_if(communicators.begin(), communicators.end(),
                                        [](const Communicator& one) { return !one.collective; }));
}

Assignment Assign(const Traffic& traffic, const Sharings& sharings) {
  Assignment assignment;
  std::map<std::array<int32_t, 4>, int32_t> number;
  for (size_t f = 0; f < traffic.flows.size(); ++f) {
    const Flow& flow = traffic.flows[f];
    auto at = static_cast<int32_t>(assignment.communicators.size());
    Communicator one{.collective = flow.IsCollective()};
    if (!one.collective) {
      one.sharing = sharings.Of(flow);
      at = number.try_emplace(KeyOf(flow, one.sharing), at).first->second;
    }
    if (at == static_cast<int32_t>(assignment.communicators.size()))
      assignment.communicators.push_back(std::move(one));
    assignment.communicators[at].flows.push_back(static_cast<int32_t>(f));
    assignment.of_flow.push_back(at);
  }
  return assignment;
}

std::string ToText(const Assignment& assignment) {
  const int all = assignment.Messages();
  std::string text = fmt::format("{} communicator{}", all, all == 1 ? "" : "s");
  const char* joint = ", ";
  for (const SharingInfo& info : kSharings) {
    const auto count = std::count_if(
        assignment.communicators.begin(), assignment.communicators.end(),
        [&](const Communicator& one) { return !one.collective && one.sharing == info.sharing; });
    if (count == 0) continue;
    if (count == all) return text + (all == 1 ? " " : ", each ") + std::string(info.meaning);
    text += fmt::format("{}{} {}", std::exchange(joint, " and "), count, info.meaning);
  }
  return text;
}

Streams MakeStreams(const Traffic& traffic, const Assignment& assignment, Groups groups) {
  return play::MakeStreams(traffic, assignment.of_flow, groups);
}

}  // namespace pp::nccl
