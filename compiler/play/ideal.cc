#include "compiler/play/ideal.h"

#include <algorithm>
#include <deque>
#include <map>

#include "compiler/play/follow.h"

namespace pp {
namespace {

constexpr double kTiny = 1e-6;  // of the longest instruction

// Each stopped device waits for a value whose producer comes after where another one has stopped.
std::vector<play::Blocked> FindCycle(const std::vector<Message>& messages,
                                     const std::vector<size_t>& next, int stopped) {
  std::vector<play::Blocked> way;
  std::vector<int64_t> seen(next.size(), -1);  // device -> where it is on the way
  int device = stopped;
  while (seen[device] < 0) {
    seen[device] = static_cast<int64_t>(way.size());
    const auto missing = std::find_if(messages.begin(), messages.end(), [&](const Message& m) {
      return m.to == device && m.consumer == static_cast<int>(next[device]) &&
             m.producer >= static_cast<int>(next[m.from]);
    });
    way.push_back({device, missing->consumer, -1, "needs the value of"});
    device = missing->from;
    if (missing->producer > static_cast<int>(next[device]))
      way.push_back({device, missing->producer, -1, "comes after"});
  }
  way.erase(way.begin(), way.begin() + seen[device]);
  return way;
}

// Every device takes the next one of its list. Messages travel one after the other on each channel,
// and arrive a latency later.
class InOrder {
 public:
  InOrder(const Program& program, const std::vector<Message>& messages, const Durations& durations)
      : program_(program),
        messages_(messages),
        durations_(durations),
        inbox_(program, messages),
        spans_(program.devices) {
    for (int d = 0; d < program.devices; ++d) spans_[d].resize(program.lists[d].body.size());
  }

  // Error: a deadlock.
  template <typename Policy>
  Status Follow(Policy& policy) {
    follower_.Run(program_.devices, policy);
    std::vector<size_t> next;
    for (int d = 0; d < program_.devices; ++d) next.push_back(follower_.turn(d).next);
    for (int d = 0; d < program_.devices; ++d)
      if (next[d] < Size(d)) return Deadlock(program_, next, FindCycle(messages_, next, d));
    return {};
  }

  size_t Size(int device) const { return spans_[device].size(); }
  double Ready(int device, size_t index) const { return inbox_.Ready(device, index); }
  bool Run(int device, Follower::Turn& turn, double ready) {
    const std::vector<Instruction>& list = program_.lists[device].body;
    Span& span = spans_[device][turn.next];
    span.start = std::max(turn.time, ready);
    span.end = turn.time = span.start + ComputeTime(list, turn.next, durations_);
    if (list[turn.next].overlap) spans_[device][++turn.next] = span;
    inbox_.ForEachOf(device, turn.next, [&](size_t m) {
      const Message& message = messages_[m];
      if (message.consumer >= 0 && inbox_.Arrive(m, ArrivalOf(message, turn.time)) &&
          static_cast<int>(follower_.turn(message.to).next) == message.consumer)
        follower_.Wake(message.to);
    });
    return true;
  }
  Spans& spans() { return spans_; }

 protected:
  double ArrivalOf(const Message& message, double time) {
    const Instruction send{.op = message.value.kind == Kind::kAct ? Op::kSendAct : Op::kSendGrad,
                           .stage = message.value.stage};
    if (const double takes = durations_(send); takes > 0) {
      double& free = free_[{message.from, message.to}];
      time = free = std::max(free, time) + takes;
    }
    return time + durations_.Latency(send);
  }

  const Program& program_;
  const std::vector<Message>& messages_;
  const Durations& durations_;
  Inbox inbox_;
  Follower follower_;
  Spans spans_;
  std::map<std::pair<int, int>, double> free_;  // channel -> when its last message is over
};

// The same with weight halves in between.
class Filler : public InOrder {
 public:
  Filler(const Program& program, const std::vector<Message>& messages, const Durations& durations,
         const WeightFill& fill)
      : InOrder(program, messages, durations), fill_(fill), places_(program.devices) {
    for (int d = 0; d < program.devices; ++d) {
      const auto& list = program.lists[d].body;
      places_[d].list.reserve(list.size() +
                              std::count_if(list.begin(), list.end(), [](const Instruction& i) {
                                return i.op == Op::kBackwardInput;
                              }));
    }
  }

  bool Run(int device, Follower::Turn& turn, double ready) {
    Place& place = places_[device];
    const Instruction& i = program_.lists[device].body[turn.next];
    const int more = ActivationChange(i.op);
    while (!place.weights.empty()) {
      const double bubble = ready - turn.time;
      const bool fits =
          bubble > 0 && bubble >= fill_.least_bubble * durations_(place.weights.front());
      const bool full = more > 0 && place.alive + more > fill_.most_alive;
      if (!fits && !full) break;
      RunWeight(place, turn.time);
    }
    place.alive += more;
    place.list.push_back(i);
    if (i.op == Op::kBackwardInput)
      place.weights.push_back({.op = Op::kBackwardWeight, .stage = i.stage, .micro = i.micro});
    return InOrder::Run(device, turn, ready);
  }

  FilledLists Filled() {
    FilledLists filled;
    for (int d = 0; d < program_.devices; ++d) {
      double time = follower_.turn(d).time;
      while (!places_[d].weights.empty()) RunWeight(places_[d], time);
      filled.lists.push_back(std::move(places_[d].list));
      filled.makespan = std::max(filled.makespan, time);
    }
    return filled;
  }

 private:
  struct Place {
    int alive = 0;
    std::deque<Instruction> weights;  // halves that are still to come
    std::vector<Instruction> list;
  };

  void RunWeight(Place& place, double& time) {
    place.list.push_back(place.weights.front());
    place.weights.pop_front();
    time += durations_(place.list.back());
    place.alive += ActivationChange(Op::kBackwardWeight);
  }

  const WeightFill fill_;
  std::vector<Place> places_;
};

}  // namespace

CostModel PositiveCosts(const CostModel& costs) {
  CostModel positive = costs;
  double longest = 0;
  for (const PerStage* values : {&costs.f, &costs.b, &costs.r, &costs.bi, &costs.bw, &costs.fb})
    for (double value : *values) longest = std::max(longest, value);
  const double least = longest > 0 ? longest * kTiny : 1;
  for (PerStage* values :
       {&positive.f, &positive.b, &positive.r, &positive.bi, &positive.bw, &positive.fb})
    for (double& value : *values) value = std::max(value, least);
  return positive;
}

Durations PositiveDurations(const CostModel& costs, const Program& program) {
  return Durations(PositiveCosts(costs), program);
}

double ComputeTime(const std::vector<Instruction>& list, size_t index, const Durations& durations) {
  const Instruction& i = list[index];
  if (i.overlap) return durations.Pair(i, list[index + 1]);
  return Info(i.op).lane == Lane::kCompute ? durations(i) : 0;
}

double MakespanOf(const Spans& spans) {
  double makespan = 0;
  for (const std::vector<Span>& list : spans)
    for (const Span& span : list) makespan = std::max(makespan, span.end);
  return makespan;
}

Result<Spans> IdealTimeline(const Program& program, const std::vector<Message>& messages,
                            const Durations& durations) {
  InOrder lists(program, messages, durations);
  PP_RETURN_IF_ERROR(lists.Follow(lists));
  return std::move(lists.spans());
}

Result<FilledLists> FillWeights(const Program& program, const std::vector<Message>& messages,
                                const Durations& durations, const WeightFill& fill) {
  Filler filler(program, messages, durations, fill);
  PP_RETURN_IF_ERROR(filler.Follow(filler));
  return filler.Filled();
}

}  // namespace pp
