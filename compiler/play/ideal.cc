#include "compiler/play/ideal.h"

#include <algorithm>

namespace pp {
namespace {

constexpr double kTiny = 1e-6;  // of the longest instruction

// Every device takes the next one of its list.
class InOrder {
 public:
  InOrder(const Program& program, const std::vector<Message>& messages, const Durations& durations)
      : program_(program), durations_(durations), channels_(program, messages, durations) {
    for (const DeviceList& list : program.lists) spans_.emplace_back(list.body.size());
  }

  size_t Size(int device) const { return spans_[device].size(); }
  double Ready(int device, size_t index) const { return channels_.Ready(device, index); }
  bool Run(int device, Follower::Turn& turn, double ready) {
    const std::vector<Instruction>& list = program_.lists[device].body;
    Span& span = spans_[device][turn.next];
    span.start = std::max(turn.time, ready);
    span.end = turn.time = span.start + ComputeTime(list, turn.next, durations_);
    if (list[turn.next].overlap) spans_[device][++turn.next] = span;
    channels_.Send(device, turn.next, span.end, follower_);
    return true;
  }

  Result<Spans> Play() {
    follower_.Run(program_.devices, *this);
    PP_RETURN_IF_ERROR(CheckEnded(program_, follower_));
    return std::move(spans_);
  }

 private:
  const Program& program_;
  const Durations& durations_;
  Channels channels_;
  Follower follower_;
  Spans spans_;
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

Status CheckEnded(const Program& program, const Follower& follower) {
  std::vector<size_t> next;
  for (int d = 0; d < program.devices; ++d) next.push_back(follower.turn(d).next);
  for (int d = 0; d < program.devices; ++d)
    if (next[d] < program.lists[d].body.size()) return Deadlock(program, next);
  return {};
}

Result<Spans> IdealTimeline(const Program& program, const std::vector<Message>& messages,
                            const Durations& durations) {
  return InOrder(program, messages, durations).Play();
}

}  // namespace pp
