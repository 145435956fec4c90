#include "compiler/ideal.h"

#include <algorithm>

namespace pp {
namespace {

constexpr double kTiny = 1e-6;  // of the longest instruction

// Calls visit(instruction, first, last) for each instruction and the list indices of what runs as
// one with it: two that overlap, or only itself.
template <typename Visit>
void ForEachUnit(const std::vector<Instruction>& list, Visit visit) {
  const int size = static_cast<int>(list.size());
  for (int first = 0, last = 0; first < size; first = last + 1) {
    last = list[first].overlap && first + 1 < size ? first + 1 : first;
    for (int i = first; i <= last; ++i) visit(list[i], first, last);
  }
}

// Where each device uses the acts and grads that other devices produce: (kind, stage, micro) ->
// list index.
class Consumers {
 public:
  explicit Consumers(const Program& program)
      : stages_(program.stages), micros_(program.microbatches) {
    at_.assign(size_t{2} * stages_ * micros_, -1);
    for (int d = 0; d < program.devices; ++d) {
      ForEachUnit(program.lists[d].body,
                  [&](const Instruction& i, int first, int) { AddUses(i, first); });
    }
  }
  static bool IsMessage(const Value& v) { return v.kind == Kind::kAct || v.kind == Kind::kGrad; }
  int& At(const Value& v) {
    return at_[(static_cast<size_t>(v.kind == Kind::kGrad) * stages_ + v.stage) * micros_ +
               v.micro];
  }

 private:
  void AddUses(const Instruction& i, int index) {
    if (i.op == Op::kWait) return Use({i.value, i.stage, i.micro}, index);
    for (const Operand& operand : Info(i.op).reads) Use(Resolve(operand, i, stages_), index);
  }
  void Use(const Value& v, int index) {
    if (IsMessage(v) && At(v) < 0) At(v) = index;
  }

  const size_t stages_, micros_;
  std::vector<int> at_;
};

}  // namespace

std::vector<Message> FindMessages(const Program& program) {
  Consumers consumers(program);
  std::vector<Message> messages;
  for (int d = 0; d < program.devices; ++d) {
    ForEachUnit(program.lists[d].body, [&](const Instruction& i, int, int producer) {
      for (const Operand& operand : Info(i.op).writes) {
        const Value v = Resolve(operand, i, program.stages);
        if (!Consumers::IsMessage(v)) continue;
        const int user = program.EndsOf(v).user;
        if (user != d) messages.push_back({v, d, user, producer, consumers.At(v)});
      }
    });
  }
  return messages;
}

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

double Arrivals::Of(const Message& message, double time) {
  const Instruction send{.op = message.value.kind == Kind::kAct ? Op::kSendAct : Op::kSendGrad,
                         .stage = message.value.stage};
  if (const double takes = durations_(send); takes > 0) {
    double& free = free_[{message.from, message.to}];
    time = free = std::max(free, time) + takes;
  }
  return time + durations_.Latency(send);
}

Result<std::vector<std::vector<Span>>> IdealTimeline(const Program& program,
                                                     const std::vector<Message>& messages,
                                                     const Durations& durations) {
  const int devices = program.devices;
  // For each instruction: the message it uses last in time is found by counting them down.
  struct Use {
    int missing = 0;
    double ready = 0;
  };
  std::vector<std::vector<Use>> uses(devices);
  std::vector<std::vector<int>> first_message(devices);  // by producer; -1: none
  std::vector<std::vector<Span>> spans(devices);
  for (int d = 0; d < devices; ++d) {
    const size_t size = program.lists[d].body.size();
    uses[d].resize(size);
    first_message[d].assign(size, -1);
    spans[d].resize(size);
  }
  for (size_t m = messages.size(); m-- > 0;) {
    if (messages[m].consumer >= 0) ++uses[messages[m].to][messages[m].consumer].missing;
    first_message[messages[m].from][messages[m].producer] = static_cast<int>(m);
  }
  Arrivals arrivals(durations);
  std::vector<size_t> next(devices, 0);
  std::vector<double> time(devices, 0);
  std::vector<int> awake;
  for (int d = devices - 1; d >= 0; --d) awake.push_back(d);
  while (!awake.empty()) {
    const int d = awake.back();
    awake.pop_back();
    const auto& list = program.lists[d].body;
    for (; next[d] < list.size() && uses[d][next[d]].missing == 0; ++next[d]) {
      Span& span = spans[d][next[d]];
      span.start = std::max(time[d], uses[d][next[d]].ready);
      span.end = time[d] = span.start + ComputeTime(list, next[d], durations);
      if (list[next[d]].overlap) spans[d][++next[d]] = span;
      const int producer = static_cast<int>(next[d]);
      if (first_message[d][producer] < 0) continue;
      for (size_t m = first_message[d][producer];
           m < messages.size() && messages[m].from == d && messages[m].producer == producer; ++m) {
        const Message& message = messages[m];
        if (message.consumer < 0) continue;
        Use& use = uses[message.to][message.consumer];
        use.ready = std::max(use.ready, arrivals.Of(message, span.end));
        if (--use.missing == 0 && static_cast<int>(next[message.to]) == message.consumer)
          awake.push_back(message.to);
      }
    }
  }
  for (int d = 0; d < devices; ++d)
    if (next[d] < program.lists[d].body.size()) return Deadlock(program, next);
  return spans;
}

}  // namespace pp
