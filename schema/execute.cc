#include "schema/execute.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "schema/collectives.h"
#include "schema/text.h"

namespace pp {
namespace {

constexpr double kPending = -1;

class Executor {
 public:
  Executor(const Program& program, const std::vector<WaitsFor>& waits_for, const CostModel& costs)
      : program_(program), waits_for_(waits_for), durations_(costs, program) {
    const size_t devices = program.devices;
    places_.resize(devices);
    ends_.resize(devices);
    for (size_t d = 0; d < devices; ++d) ends_[d].assign(ListOf(d).size(), kPending);
  }

  Status Run() {
    PP_RETURN_IF_ERROR(FindChannels());
    FindReductions();
    for (int d = 0; d < program_.devices; ++d) Wake(d);
    while (!awake_.empty()) {
      const int device = awake_.back();
      awake_.pop_back();
      places_[device].awake = false;
      Advance(device);
    }
    for (int d = 0; d < program_.devices; ++d)
      if (!AtEnd(d)) return Stuck();
    return {};
  }

  Execution Times() const {
    Execution execution;
    execution.spans.resize(program_.devices);
    for (int d = 0; d < program_.devices; ++d) {
      auto& spans = execution.spans[d];
      const auto& list = ListOf(d);
      spans.reserve(list.size());
      for (size_t i = 0; i < list.size(); ++i) {
        spans.push_back({ends_[d][i] - durations_(list[i]), ends_[d][i]});
        execution.makespan = std::max(execution.makespan, ends_[d][i]);
        if (!list[i].overlap) continue;
        spans.push_back({ends_[d][i] - durations_.Pair(list[i], list[i + 1]), ends_[d][i]});
        spans[i] = spans[i + 1];
        ++i;
      }
    }
    return execution;
  }

 private:
  // The position of a device.
  struct Place {
    size_t next = 0;  // in its list: the compute lane has finished all before
    double time = 0;  // of its compute lane
    bool awake = false;
    std::vector<int> channels;      // those it is an end of
    std::vector<int> reductions;    // those it takes part in, in list order (indices)
    std::vector<int> reduction_of;  // and their numbers in reductions_
    size_t next_reduction = 0;
    double reduce_time = 0;  // of its reduce lane
    bool arrived = false;    // it has reached that one
  };
  // A direction between two devices, with the list indices of its messages.
  struct Channel {
    int from, to;
    std::vector<int> sends, receives;
    size_t next = 0;
    double time = 0;
  };
  struct Reduction {
    int members = 0;                           // devices that list it
    std::vector<std::pair<int, int>> arrived;  // device, index
    double time = 0;
  };

  const std::vector<Instruction>& ListOf(size_t device) const {
    return program_.lists[device].body;
  }
  bool AtEnd(int device) const { return places_[device].next == ListOf(device).size(); }
  bool Blocking() const { return program_.p2p == P2p::kBlocking; }

  void Wake(int device) {
    if (places_[device].awake) return;
    places_[device].awake = true;
    awake_.push_back(device);
  }

  Status FindChannels() {
    std::unordered_map<int64_t, int> number;
    for (int d = 0; d < program_.devices; ++d) {
      const auto& list = ListOf(d);
      for (size_t i = 0; i < list.size(); ++i) {
        if (!IsMessage(list[i])) continue;
        const bool send = Info(list[i].op).lane == Lane::kSend;
        const int from = send ? d : list[i].peer, to = send ? list[i].peer : d;
        const auto [at, is_new] = number.try_emplace(int64_t{from} * program_.devices + to,
                                                     static_cast<int>(channels_.size()));
        if (is_new) {
          channels_.push_back({from, to, {}, {}});
          places_[from].channels.push_back(at->second);
          places_[to].channels.push_back(at->second);
        }
        Channel& channel = channels_[at->second];
        (send ? channel.sends : channel.receives).push_back(static_cast<int>(i));
      }
    }
    for (const Channel& channel : channels_) PP_RETURN_IF_ERROR(CheckOrder(channel));
    return {};
  }

  // On a channel the receives are in the order of the sends.
  Status CheckOrder(const Channel& channel) const {
    const size_t most = std::max(channel.sends.size(), channel.receives.size());
    for (size_t k = 0; k < most; ++k) {
      auto text = [&](const std::vector<int>& indices, int device) {
        return k < indices.size() ? "'" + ToText(ListOf(device)[indices[k]]) + "'"
                                  : std::string("nothing");
      };
      const bool both = k < channel.sends.size() && k < channel.receives.size();
      if (both) {
        const Instruction& send = ListOf(channel.from)[channel.sends[k]];
        const Instruction& receive = ListOf(channel.to)[channel.receives[k]];
        const bool act = send.op == Op::kSendAct;
        if (act == (receive.op == Op::kRecvAct) && send.stage == receive.stage &&
            send.micro == receive.micro)
          continue;
      }
      return Status::Invalid(
          fmt::format("channel d{} to d{}: message {} is {} at its start and {} at its end "
                      "(receives must be in "
                      "the order of the sends)",
                      channel.from, channel.to, k, text(channel.sends, channel.from),
                      text(channel.receives, channel.to)));
    }
    return {};
  }

  void FindReductions() {
    const Collectives collectives = FindCollectives(program_);
    for (const Collective& collective : collectives.all)
      reductions_.push_back({static_cast<int>(collective.members.size()), {}, 0});
    for (int d = 0; d < program_.devices; ++d) {
      const auto& list = ListOf(d);
      for (size_t i = 0; i < list.size(); ++i)
        if (Info(list[i].op).lane == Lane::kReduce)
          places_[d].reductions.push_back(static_cast<int>(i));
      places_[d].reduction_of = collectives.started_by[d];
    }
  }

  void Advance(int device) {
    Place& place = places_[device];
    const auto& list = ListOf(device);
    for (; place.next < list.size(); ++place.next) {
      const Instruction& i = list[place.next];
      double& end = ends_[device][place.next];
      const Lane lane = Info(i.op).lane;
      if (lane == Lane::kReduce) continue;
      if (lane != Lane::kCompute) {
        if (!Blocking()) continue;
        if (!Meet(device, i)) break;
      } else if (i.op == Op::kWait) {
        const double over = ends_[device][waits_for_[device][place.next]];
        if (over == kPending) break;
        end = place.time = std::max(place.time, over);
      } else if (i.overlap) {
        end = place.time += durations_.Pair(i, list[place.next + 1]);
        ends_[device][++place.next] = place.time;
      } else {
        end = place.time += durations_(i);
      }
    }
    StartReductions(device);
    if (!Blocking())
      for (int channel : place.channels) StartMessages(channels_[channel]);
  }

  // Blocking sends: whoever comes second completes the message for both.
  bool Meet(int device, const Instruction& i) {
    Place& here = places_[device];
    Place& there = places_[i.peer];
    const auto& list = ListOf(i.peer);
    if (there.next == list.size()) return false;
    const Instruction& other = list[there.next];
    const bool partners = IsMessage(other) && other.peer == device &&
                          Info(other.op).lane != Info(i.op).lane && other.stage == i.stage &&
                          other.micro == i.micro && KindOfMessage(other.op) == KindOfMessage(i.op);
    if (!partners) return false;
    const double end = std::max(here.time, there.time) + durations_(i) + durations_.Latency(i);
    ends_[device][here.next] = here.time = end;
    ends_[i.peer][there.next] = there.time = end;
    ++there.next;
    Wake(i.peer);
    return true;
  }

  bool Passed(int device, int index) const {
    return static_cast<int64_t>(places_[device].next) > index;
  }
  double EndOf(int device, int index) const { return index < 0 ? 0 : ends_[device][index]; }

  void StartMessages(Channel& channel) {
    const size_t messages = std::min(channel.sends.size(), channel.receives.size());
    bool any = false;
    for (; channel.next < messages; ++channel.next) {
      const int send = channel.sends[channel.next], receive = channel.receives[channel.next];
      const int wait_send = waits_for_[channel.from][send];
      const int wait_receive = waits_for_[channel.to][receive];
      if (!Passed(channel.from, wait_send) || !Passed(channel.to, wait_receive)) break;
      const double start =
          std::max({channel.time, EndOf(channel.from, wait_send), EndOf(channel.to, wait_receive)});
      const Instruction& i = ListOf(channel.from)[send];
      channel.time = start + durations_(i);
      ends_[channel.from][send] = channel.time;
      ends_[channel.to][receive] = channel.time + durations_.Latency(i);
      any = true;
    }
    if (!any) return;
    Wake(channel.from);
    Wake(channel.to);
  }

  void StartReductions(int device) {
    Place& place = places_[device];
    while (place.next_reduction < place.reductions.size()) {
      const int index = place.reductions[place.next_reduction];
      const int after = waits_for_[device][index];
      if (!Passed(device, after)) return;
      Reduction& reduction = reductions_[place.reduction_of[place.next_reduction]];
      if (!place.arrived) {
        place.arrived = true;
        reduction.arrived.push_back({device, index});
        reduction.time = std::max({reduction.time, EndOf(device, after), place.reduce_time});
      }
      if (static_cast<int>(reduction.arrived.size()) < reduction.members) return;
      const double end = reduction.time + durations_(ListOf(device)[index]);
      for (auto [member, at] : reduction.arrived) {
        ends_[member][at] = places_[member].reduce_time = end;
        ++places_[member].next_reduction;
        places_[member].arrived = false;
        Wake(member);
      }
    }
  }

  Status Stuck() const {
    std::vector<size_t> next;
    for (const Place& place : places_) next.push_back(place.next);
    return Deadlock(program_, next);
  }

  const Program& program_;
  const std::vector<WaitsFor>& waits_for_;
  const Durations durations_;
  std::vector<Place> places_;
  std::vector<Channel> channels_;
  std::vector<Reduction> reductions_;
  std::vector<std::vector<double>> ends_;  // when an instruction is over
  std::vector<int> awake_;
};

}  // namespace

Status Deadlock(const Program& program, std::span<const size_t> next) {
  constexpr int kShown = 8;
  std::string text;
  int stopped = 0;
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    if (next[d] == list.size() || ++stopped > kShown) continue;
    text += fmt::format("{} device {} stops at '{}'", stopped == 1 ? "" : ";", d,
                        ToText(list[next[d]]));
  }
  if (stopped > kShown) text += fmt::format("; and {} more", stopped - kShown);
  return Status::Invalid("deadlock:" + text);
}

Status Execute(const Program& program, const std::vector<WaitsFor>& waits_for,
               const CostModel& costs, Execution* execution) {
  Executor executor(program, waits_for, costs);
  PP_RETURN_IF_ERROR(executor.Run());
  if (execution) *execution = executor.Times();
  return {};
}

}  // namespace pp
