#include "schema/play/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "schema/play/per_device.h"
#include "schema/semantics/collectives.h"
#include "schema/text.h"

namespace pp::play {
namespace {

class Finder {
 public:
  Finder(const Program& unrolled, const std::vector<WaitsFor>& waits_for)
      : unrolled_(unrolled),
        waits_for_(waits_for),
        channel_to_(unrolled.devices),
        channel_from_(unrolled.devices),
        reductions_(unrolled.devices),
        end_at_(unrolled.devices) {
    traffic_.started_by.resize(unrolled.devices);
    traffic_.joins.resize(unrolled.devices);
  }

  Result<Traffic> Run() {
    for (int d = 0; d < unrolled_.devices; ++d) {
      end_at_[d].assign(List(d).size(), -1);
      FindOperations(d);
    }
    PP_RETURN_IF_ERROR(CheckChannels());
    FindReductions();
    latest_ = PerDevice(traffic_.flows.size());
    for (int d = 0; d < unrolled_.devices; ++d) FindConditions(d);
    return std::move(traffic_);
  }

 private:
  const std::vector<Instruction>& List(int device) const { return unrolled_.lists[device].body; }
  bool Blocking() const { return unrolled_.p2p == P2p::kBlocking; }

  struct Message {
    int32_t index;  // of the instruction
    Value value;
  };
  // A direction between two devices: its messages as either list has them.
  struct Channel {
    int from, to;
    std::vector<Message> sends, receives;
    int32_t flow[2] = {-1, -1};  // of its acts, and of its grads
  };

  Channel& ChannelOf(int device, int from, int to) {
    int32_t& known =
        (from == device ? channel_to_ : channel_from_).Of(device, from == device ? to : from);
    if (known < 0) known = NumberOf(from, to);
    return channels_[known];
  }
  int32_t NumberOf(int from, int to) {
    const auto [at, is_new] = channel_of_.try_emplace(int64_t{from} * unrolled_.devices + to,
                                                      static_cast<int32_t>(channels_.size()));
    if (is_new) channels_.push_back({from, to, {}, {}});
    return at->second;
  }

  void FindOperations(int d) {
    for (size_t i = 0; i < List(d).size(); ++i) {
      const Instruction& instruction = List(d)[i];
      const Lane lane = Info(instruction.op).lane;
      if (lane == Lane::kReduce) reductions_[d].push_back(static_cast<int32_t>(i));
      if (lane != Lane::kSend && lane != Lane::kRecv) continue;
      const bool send = lane == Lane::kSend;
      Channel& channel = ChannelOf(d, send ? d : instruction.peer, send ? instruction.peer : d);
      const Kind kind = KindOfMessage(instruction.op);
      (send ? channel.sends : channel.receives)
          .push_back({static_cast<int32_t>(i), {kind, instruction.stage, instruction.micro}});
      int32_t& flow = channel.flow[kind == Kind::kGrad];
      if (flow >= 0) continue;
      flow = static_cast<int32_t>(traffic_.flows.size());
      traffic_.flows.push_back({{channel.from, channel.to}, kind});
    }
  }

  // On a channel the receives are in the order of the sends: the k-th of each are one transfer.
  Status CheckChannels() {
    size_t messages = 0;
    for (const Channel& channel : channels_) messages += channel.sends.size();
    traffic_.transfers.reserve(messages);
    traffic_.ends.reserve(2 * messages);
    for (const Channel& channel : channels_) {
      const size_t most = std::max(channel.sends.size(), channel.receives.size());
      for (size_t k = 0; k < most; ++k) {
        if (k >= channel.sends.size() || k >= channel.receives.size() ||
            channel.sends[k].value != channel.receives[k].value)
          return Mismatch(channel, k);
        const auto transfer = static_cast<int32_t>(traffic_.transfers.size());
        const auto end = static_cast<int32_t>(traffic_.ends.size());
        const Kind kind = channel.sends[k].value.kind;
        traffic_.transfers.push_back({channel.flow[kind == Kind::kGrad], end, 2});
        traffic_.ends.push_back({transfer, channel.from, channel.sends[k].index});
        traffic_.ends.push_back({transfer, channel.to, channel.receives[k].index});
        end_at_[channel.from][channel.sends[k].index] = end;
        end_at_[channel.to][channel.receives[k].index] = end + 1;
      }
    }
    return {};
  }

  Status Mismatch(const Channel& channel, size_t k) const {
    auto text = [&](const std::vector<Message>& messages, int device) {
      return k < messages.size() ? "'" + ToText(List(device)[messages[k].index]) + "'"
                                 : std::string("nothing");
    };
    return Status::Invalid(
        fmt::format("channel d{} to d{}: message {} is {} at its start and {} at its end "
                    "(receives must be in the order of the sends)",
                    channel.from, channel.to, k, text(channel.sends, channel.from),
                    text(channel.receives, channel.to)));
  }

  void FindReductions() {
    const Collectives collectives = FindCollectives(unrolled_);
    std::map<std::vector<int>, int32_t> flow_of;
    const auto first = static_cast<int32_t>(traffic_.transfers.size());
    for (const Collective& collective : collectives.all) {
      const auto [at, is_new] =
          flow_of.try_emplace(collective.members, static_cast<int32_t>(traffic_.flows.size()));
      if (is_new) traffic_.flows.push_back({collective.members, Kind::kNone});
      const auto end = static_cast<int32_t>(traffic_.ends.size());
      const auto members = static_cast<int32_t>(collective.members.size());
      traffic_.transfers.push_back({at->second, end, members});
      traffic_.ends.resize(end + members);
    }
    std::vector<int32_t> placed(collectives.all.size(), 0);  // members come in ascending order
    for (int d = 0; d < unrolled_.devices; ++d) {
      for (size_t k = 0; k < reductions_[d].size(); ++k) {
        const int32_t transfer = first + collectives.started_by[d][k];
        const int32_t end = traffic_.transfers[transfer].first_end + placed[transfer - first]++;
        traffic_.ends[end] = {transfer, d, reductions_[d][k]};
        end_at_[d][reductions_[d][k]] = end;
      }
    }
  }

  void FindConditions(int d) {
    traffic_.joins[d].assign(List(d).size(), -1);
    for (size_t i = 0; i < List(d).size(); ++i) {
      const Instruction& instruction = List(d)[i];
      int32_t joined = -1;
      if (const int32_t e = end_at_[d][i]; e >= 0) {
        End& end = traffic_.ends[e];
        traffic_.started_by[d].push_back(e);
        const bool in_lane = Blocking() && IsMessage(instruction);
        if (in_lane) joined = e;
        int32_t& last = latest_.Of(d, traffic_.transfers[end.transfer].flow);
        end.after = last = std::max(last, in_lane ? static_cast<int32_t>(i) - 1 : waits_for_[d][i]);
      } else if (instruction.op == Op::kWait) {
        joined = end_at_[d][waits_for_[d][i]];
      }
      traffic_.joins[d][i] = joined;
      if (joined >= 0)
        traffic_.ends[joined].joined =
            std::min(traffic_.ends[joined].joined, static_cast<int32_t>(i));
    }
  }

  const Program& unrolled_;
  const std::vector<WaitsFor>& waits_for_;
  Traffic traffic_;
  std::unordered_map<int64_t, int32_t> channel_of_;
  PerDevice channel_to_, channel_from_;  // peer -> channel
  std::vector<Channel> channels_;
  std::vector<std::vector<int32_t>> reductions_;  // device -> the instructions that reduce
  std::vector<std::vector<int32_t>> end_at_;      // device -> instruction -> its end, or -1
  PerDevice latest_{0};                           // flow -> `after` of its last end on this device
};

}  // namespace

Result<Traffic> FindTraffic(const Program& unrolled, const std::vector<WaitsFor>& waits_for) {
  return Finder(unrolled, waits_for).Run();
}

std::string NameOf(const Program& unrolled, int device, int index) {
  return fmt::format("device {} '{}' (instruction {})", device,
                     ToText(unrolled.lists[device].body[index]), index);
}
std::string NameOf(const Program& unrolled, const End& end) {
  return NameOf(unrolled, end.device, end.index);
}

}  // namespace pp::play
