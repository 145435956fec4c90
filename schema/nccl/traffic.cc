#include "schema/nccl/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "schema/collectives.h"
#include "schema/text.h"

namespace pp::nccl {
namespace {

class Finder {
 public:
  Finder(const Program& paper, const std::vector<WaitsFor>& waits_for)
      : paper_(paper), waits_for_(waits_for), end_at_(paper.devices) {
    traffic_.started_by.resize(paper.devices);
    traffic_.joins.resize(paper.devices);
  }

  Traffic Run() {
    for (int d = 0; d < paper_.devices; ++d) {
      end_at_[d].assign(List(d).size(), -1);
      FindMessages(d);
    }
    FindReductions();
    for (int d = 0; d < paper_.devices; ++d) {
      FindStarts(d);
      FindJoins(d);
    }
    return std::move(traffic_);
  }

 private:
  const std::vector<Instruction>& List(int device) const { return paper_.lists[device].body; }
  bool Blocking() const { return paper_.p2p == P2p::kBlocking; }

  // Its k-th send meets its k-th receive.
  struct Progress {
    std::vector<int32_t> transfers;
    size_t sends = 0, receives = 0;
  };

  int32_t FlowOf(int from, int to, Kind kind) {
    const int64_t key = (int64_t{from} * paper_.devices + to) * 2 + (kind == Kind::kAct);
    const auto [at, is_new] = flow_of_.try_emplace(key, static_cast<int32_t>(progress_.size()));
    if (is_new) {
      traffic_.flows.push_back({{from, to}, kind});
      progress_.emplace_back();
    }
    return at->second;
  }

  int32_t NewTransfer(int32_t flow, size_t ends) {
    traffic_.transfers.push_back(
        {flow, static_cast<int32_t>(traffic_.ends.size()), static_cast<int32_t>(ends)});
    traffic_.ends.resize(traffic_.ends.size() + ends);
    return static_cast<int32_t>(traffic_.transfers.size() - 1);
  }

  void PlaceEnd(int32_t transfer, int32_t end, int device, size_t index) {
    traffic_.ends[end].transfer = transfer;
    traffic_.ends[end].device = device;
    traffic_.ends[end].index = static_cast<int32_t>(index);
    end_at_[device][index] = end;
  }

  void FindMessages(int d) {
    for (size_t i = 0; i < List(d).size(); ++i) {
      const Instruction& instruction = List(d)[i];
      if (!IsMessage(instruction)) continue;
      const bool send = Info(instruction.op).lane == Lane::kSend;
      const int32_t flow = FlowOf(send ? d : instruction.peer, send ? instruction.peer : d,
                                  KindOfMessage(instruction.op));
      Progress& progress = progress_[flow];
      const size_t k = send ? progress.sends++ : progress.receives++;
      if (k == progress.transfers.size()) progress.transfers.push_back(NewTransfer(flow, 2));
      const int32_t transfer = progress.transfers[k];
      PlaceEnd(transfer, traffic_.transfers[transfer].first_end + (send ? 0 : 1), d, i);
    }
  }

  void FindReductions() {
    const Collectives collectives = FindCollectives(paper_);
    std::map<std::vector<int>, int32_t> flow_of;
    const auto first = static_cast<int32_t>(traffic_.transfers.size());
    for (const Collective& collective : collectives.all) {
      const auto [at, is_new] =
          flow_of.try_emplace(collective.members, static_cast<int32_t>(traffic_.flows.size()));
      if (is_new) traffic_.flows.push_back({collective.members, Kind::kNone});
      NewTransfer(at->second, collective.members.size());
    }
    std::vector<int32_t> placed(collectives.all.size(), 0);  // members come in ascending order
    for (int d = 0; d < paper_.devices; ++d) {
      size_t next = 0;
      for (size_t i = 0; i < List(d).size(); ++i) {
        if (Info(List(d)[i].op).lane != Lane::kReduce) continue;
        const int at = collectives.started_by[d][next++];
        PlaceEnd(first + at, traffic_.transfers[first + at].first_end + placed[at]++, d, i);
      }
    }
  }

  void FindStarts(int d) {
    std::unordered_map<int32_t, int32_t> latest;  // flow -> `after` of its last end on this device
    for (size_t i = 0; i < List(d).size(); ++i) {
      if (end_at_[d][i] < 0) continue;
      End& end = traffic_.ends[end_at_[d][i]];
      traffic_.started_by[d].push_back(end_at_[d][i]);
      const bool in_lane = Blocking() && IsMessage(List(d)[i]);
      const int32_t after = in_lane ? static_cast<int32_t>(i) - 1 : waits_for_[d][i];
      int32_t& last = latest.try_emplace(traffic_.transfers[end.transfer].flow, -1).first->second;
      end.after = last = std::max(last, after);
    }
  }

  void FindJoins(int d) {
    traffic_.joins[d].assign(List(d).size(), -1);
    for (size_t i = 0; i < List(d).size(); ++i) {
      const Instruction& instruction = List(d)[i];
      int32_t end = -1;
      if (instruction.op == Op::kWait) {
        end = end_at_[d][waits_for_[d][i]];
      } else if (Blocking() && IsMessage(instruction)) {
        end = end_at_[d][i];
      }
      traffic_.joins[d][i] = end;
      if (end >= 0)
        traffic_.ends[end].joined = std::min(traffic_.ends[end].joined, static_cast<int32_t>(i));
    }
  }

  const Program& paper_;
  const std::vector<WaitsFor>& waits_for_;
  Traffic traffic_;
  std::unordered_map<int64_t, int32_t> flow_of_;
  std::vector<Progress> progress_;            // of the messages' flows
  std::vector<std::vector<int32_t>> end_at_;  // device -> instruction -> its end, or -1
};

}  // namespace

Traffic FindTraffic(const Program& paper, const std::vector<WaitsFor>& waits_for) {
  return Finder(paper, waits_for).Run();
}

std::string NameOf(const Program& paper, int device, int index) {
  return fmt::format("device {} '{}' (instruction {})", device,
                     ToText(paper.lists[device].body[index]), index);
}
std::string NameOf(const Program& paper, const End& end) {
  return NameOf(paper, end.device, end.index);
}

}  // namespace pp::nccl
