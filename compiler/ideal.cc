#include "compiler/ideal.h"

#include <algorithm>

namespace pp {
namespace {

constexpr double kTiny = 1e-6;  // of the longest instruction

// Where each device uses the acts and grads that other devices make: (kind, stage,
// micro) -> list index.
class Consumers {
 public:
  explicit Consumers(const Program& program)
      : stages_(program.stages), micros_(program.microbatches) {
    at_.assign(size_t{2} * stages_ * micros_, -1);
    for (int d = 0; d < program.devices; ++d) {
      const auto& list = program.lists[d].body;
      for (size_t i = 0; i < list.size(); ++i)
        for (const Operand& operand : Info(list[i].op).reads)
          if (const Value v = Resolve(operand, list[i], stages_); IsMessage(v))
            At(v) = static_cast<int>(i);
    }
  }
  static bool IsMessage(const Value& v) { return v.kind == Kind::kAct || v.kind == Kind::kGrad; }
  int& At(const Value& v) {
    return at_[(static_cast<size_t>(v.kind == Kind::kGrad) * stages_ + v.stage) * micros_ +
               v.micro];
  }

 private:
  const size_t stages_, micros_;
  std::vector<int> at_;
};

}  // namespace

std::vector<Message> FindMessages(const Program& program) {
  Consumers consumers(program);
  std::vector<Message> messages;
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    for (size_t i = 0; i < list.size(); ++i) {
      for (const Operand& operand : Info(list[i].op).writes) {
        const Value v = Resolve(operand, list[i], program.stages);
        if (!Consumers::IsMessage(v)) continue;
        // act(s) is used on the device of s+1, grad(s) on that of s.
        const int user = program.pipes[program.pipe_of[v.micro]]
                             .device_of[v.kind == Kind::kAct ? v.stage + 1 : v.stage];
        if (user != d) messages.push_back({v, d, user, static_cast<int>(i), consumers.At(v)});
      }
    }
  }
  return messages;
}

Durations PositiveDurations(const CostModel& costs, const Program& program) {
  CostModel positive = costs;
  double longest = 0;
  for (const PerStage* values : {&costs.f, &costs.b, &costs.r, &costs.bi, &costs.bw})
    for (double value : *values) longest = std::max(longest, value);
  const double least = longest > 0 ? longest * kTiny : 1;
  for (PerStage* values : {&positive.f, &positive.b, &positive.r, &positive.bi, &positive.bw})
    for (double& value : *values) value = std::max(value, least);
  return Durations(positive, program);
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
      span.end = time[d] = span.start + durations(list[next[d]]);
      const int producer = static_cast<int>(next[d]);
      if (first_message[d][producer] < 0) continue;
      for (size_t m = first_message[d][producer];
           m < messages.size() && messages[m].from == d && messages[m].producer == producer; ++m) {
        const Message& message = messages[m];
        if (message.consumer < 0) continue;
        Use& use = uses[message.to][message.consumer];
        use.ready = std::max(use.ready, span.end);
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
