#include "schema/nccl/creation.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace pp::nccl {
namespace {

// Who meets to create what, and which of it each device reaches, and at which end.
struct Meetings {
  struct Visit {
    int32_t meeting, end;
  };
  std::vector<std::vector<int32_t>> members;  // meeting -> devices
  std::vector<std::vector<Visit>> visits;     // device -> in list order
};

Meetings FindMeetings(const Traffic& traffic, const Assignment& assignment) {
  Meetings meetings;
  std::vector<int32_t> of_flow(traffic.flows.size());
  std::unordered_map<int64_t, int32_t> number;
  for (size_t f = 0; f < traffic.flows.size(); ++f) {
    const Flow& flow = traffic.flows[f];
    const Communicator& one = assignment.communicators[assignment.of_flow[f]];
    // With one communicator for all messages the direction is connected, otherwise the communicator
    // is created.
    const int64_t key = !one.collective && one.sharing == Sharing::kAll
                            ? (int64_t{flow.members[0]} << 32) + flow.members[1]
                            : -1 - int64_t{assignment.of_flow[f]};
    const auto [at, is_new] = number.try_emplace(key, static_cast<int32_t>(number.size()));
    if (is_new) meetings.members.push_back(flow.members);
    of_flow[f] = at->second;
  }
  meetings.visits.resize(traffic.started_by.size());
  std::vector<int32_t> last(meetings.members.size(), -1);  // device that reached it last
  for (size_t d = 0; d < traffic.started_by.size(); ++d)
    for (const int32_t e : traffic.started_by[d]) {
      const int32_t meeting = of_flow[traffic.transfers[traffic.ends[e].transfer].flow];
      if (last[meeting] == static_cast<int32_t>(d)) continue;
      last[meeting] = static_cast<int32_t>(d);
      meetings.visits[d].push_back({meeting, e});
    }
  return meetings;
}

// Where each device stops when nothing progresses any more.
std::vector<size_t> GoOn(const Meetings& meetings) {
  std::vector<size_t> next(meetings.visits.size(), 0), arrived(meetings.members.size(), 0);
  std::vector<int32_t> complete;  // all members have reached it
  auto arrive = [&](int32_t device) {
    if (next[device] == meetings.visits[device].size()) return;
    const int32_t at = meetings.visits[device][next[device]].meeting;
    if (++arrived[at] == meetings.members[at].size()) complete.push_back(at);
  };
  for (size_t d = 0; d < next.size(); ++d) arrive(static_cast<int32_t>(d));
  while (!complete.empty()) {
    const int32_t at = complete.back();
    complete.pop_back();
    for (const int32_t member : meetings.members[at]) ++next[member], arrive(member);
  }
  return next;
}

}  // namespace

Status CheckCreation(const Program& paper, const Traffic& traffic, const Assignment& assignment) {
  const Meetings meetings = FindMeetings(traffic, assignment);
  const std::vector<size_t> next = GoOn(meetings);
  auto stands = [&](int32_t d) { return next[d] < meetings.visits[d].size(); };
  int32_t device = 0;
  while (device < paper.devices && !stands(device)) ++device;
  if (device == paper.devices) return {};
  // Each waits for a member that is stuck elsewhere: the path ends in a cycle.
  std::vector<int32_t> way;
  auto seen = way.end();
  while (seen == way.end()) {
    way.push_back(device);
    const int32_t meeting = meetings.visits[device][next[device]].meeting;
    const auto& members = meetings.members[meeting];
    device = *std::find_if(members.begin(), members.end(), [&](int32_t member) {
      return meetings.visits[member][next[member]].meeting != meeting;
    });
    seen = std::find(way.begin(), way.end(), device);
  }
  way.erase(way.begin(), seen);
  std::string text;
  for (const int32_t d : way)
    text += fmt::format("{}{}", text.empty() ? "" : ", which waits for ",
                        NameOf(paper, traffic.ends[meetings.visits[d][next[d]].end]));
  return Status::Invalid(fmt::format(
      "deadlock where communicators are made at their first use: {}, which waits for the first",
      text));
}

}  // namespace pp::nccl
