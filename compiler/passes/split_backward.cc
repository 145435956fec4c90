// split-backward: every backward in two halves (Qi et al., 2024). The input half takes the place of
// the backward, since the previous stage waits for it; the weight half waits for a bubble.
//
//   d0 | F0 F1  .  . B0 -- F2 B1 --  . B2 --   =>   d0 | F0 F1  . I0 W0 F2 I1 W1 I2 W2
//   d1 |  . F0 B0 -- F1 B1 -- F2 B2 --  .  .   =>   d1 |  . F0 I0 F1 I1 W0 F2 I2 W1 W2
//
// The lists are simulated. A device that waits, or that has no memory left for its next forward,
// runs its oldest weight half. Memory: as much as the device with the most had before. Several
// thresholds for the length of a bubble are tried; the fastest wins.
#include <algorithm>
#include <deque>

#include "compiler/ideal.h"
#include "compiler/pass.h"
#include "compiler/passes/schedule.h"

namespace pp {
namespace {

using List = std::vector<Instruction>;

int PeakOf(const List& list) {
  int alive = 0, peak = 0;
  for (const Instruction& i : list) peak = std::max(peak, alive += ActivationChange(i.op));
  return peak;
}

// Simulates a program whose backwards are input halves, and adds the weight halves.
class Filler {
 public:
  // A bubble must be at least `least` of a weight half long to take it.
  Filler(const Program& program, const CostModel& costs, int most, double least)
      : program_(program),
        durations_(costs, program),
        arrivals_(durations_),
        messages_(FindMessages(program)),
        most_(most),
        least_(least),
        devices_(program.devices) {
    for (int d = 0; d < program.devices; ++d) {
      devices_[d].uses.resize(program.lists[d].body.size());
      devices_[d].first_message.assign(program.lists[d].body.size(), -1);
    }
    for (size_t m = messages_.size(); m-- > 0;) {
      const Message& message = messages_[m];
      if (message.consumer >= 0) ++devices_[message.to].uses[message.consumer].missing;
      devices_[message.from].first_message[message.producer] = static_cast<int>(m);
    }
  }

  // Error: a deadlock.
  Result<std::vector<List>> Run() {
    while (Device* next = Earliest()) Step(*next);
    std::vector<size_t> next;
    for (const Device& device : devices_) next.push_back(device.next);
    for (const Device& device : devices_)
      if (device.next < ListOf(device).size()) return Deadlock(program_, next);
    std::vector<List> lists;
    for (Device& device : devices_) {
      while (!device.weights.empty()) RunWeight(device);
      lists.push_back(std::move(device.list));
      makespan_ = std::max(makespan_, device.time);
    }
    return lists;
  }
  double makespan() const { return makespan_; }

 private:
  struct Use {
    int missing = 0;   // messages that have not been sent
    double ready = 0;  // when the last one arrives
  };
  struct Device {
    size_t next = 0;
    double time = 0;
    int alive = 0;
    std::vector<Use> uses;           // by instruction
    std::vector<int> first_message;  // by producer; -1: none
    std::deque<Instruction> weights;
    List list;
  };

  const List& ListOf(const Device& device) const {
    return program_.lists[&device - devices_.data()].body;
  }

  // The device whose next decision is the earliest: one whose next instruction's time is known.
  Device* Earliest() {
    Device* earliest = nullptr;
    for (Device& device : devices_) {
      if (device.next == ListOf(device).size() || device.uses[device.next].missing > 0) continue;
      if (earliest == nullptr || StartOf(device) < StartOf(*earliest)) earliest = &device;
    }
    return earliest;
  }
  double StartOf(const Device& device) const {
    return std::max(device.time, device.uses[device.next].ready);
  }

  void Step(Device& device) {
    const Instruction i = ListOf(device)[device.next];
    while (!device.weights.empty()) {
      const double bubble = StartOf(device) - device.time;
      const bool fits = bubble > 0 && bubble >= least_ * durations_(device.weights.front());
      const bool full = ActivationChange(i.op) > 0 && device.alive + ActivationChange(i.op) > most_;
      if (!fits && !full) break;
      RunWeight(device);
    }
    device.time = StartOf(device) + durations_(i);
    device.alive += ActivationChange(i.op);
    device.list.push_back(i);
    if (i.op == Op::kBackwardInput)
      device.weights.push_back({.op = Op::kBackwardWeight, .stage = i.stage, .micro = i.micro});
    const int from = static_cast<int>(&device - devices_.data());
    const int producer = static_cast<int>(device.next++);
    if (device.first_message[producer] < 0) return;
    for (size_t m = device.first_message[producer];
         m < messages_.size() && messages_[m].from == from && messages_[m].producer == producer;
         ++m) {
      if (messages_[m].consumer < 0) continue;
      Use& use = devices_[messages_[m].to].uses[messages_[m].consumer];
      --use.missing;
      use.ready = std::max(use.ready, arrivals_.Of(messages_[m], device.time));
    }
  }

  void RunWeight(Device& device) {
    device.list.push_back(device.weights.front());
    device.weights.pop_front();
    device.time += durations_(device.list.back());
    device.alive += ActivationChange(Op::kBackwardWeight);
  }

  const Program& program_;
  const Durations durations_;
  Arrivals arrivals_;
  const std::vector<Message> messages_;
  const int most_;
  const double least_;
  std::vector<Device> devices_;
  double makespan_ = 0;
};

}  // namespace

Status SplitBackward(Program& program, const PassContext& context) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "split-backward"));
  DropMarks(program);
  int peak = 0;
  for (const DeviceList& list : program.lists) peak = std::max(peak, PeakOf(list.body));
  for (DeviceList& list : program.lists)
    for (Instruction& i : list.body)
      if (i.op == Op::kBackward) i.op = Op::kBackwardInput;
  std::vector<List> best;
  double makespan = 0;
  for (double least : {0.0, 0.5, 1.0}) {
    Filler filler(program, context.costs, peak, least);
    auto lists = filler.Run();
    if (!lists.ok()) return lists.status();
    if (!best.empty() && filler.makespan() >= makespan) continue;
    makespan = filler.makespan();
    best = std::move(*lists);
  }
  for (int d = 0; d < program.devices; ++d) program.lists[d].body = std::move(best[d]);
  return {};
}

}  // namespace pp
