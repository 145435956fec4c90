#include "runtime/plan/recorder.h"

#include <algorithm>

namespace pp {

CommKind CommKindOf(Op op) {
  switch (op) {
    case Op::kSendAct:
    case Op::kRecvAct:
    case Op::kSendGrad:
    case Op::kRecvGrad:
      return CommKind::kMessages;
    case Op::kReduceGrad:
    case Op::kScatterGrad:
      return CommKind::kGradients;
    case Op::kReduceTied:
      return CommKind::kTied;
    case Op::kReduceNorm:
      return CommKind::kNorm;
    case Op::kGatherWeights:
      return CommKind::kWeights;
    case Op::kLoad:
    case Op::kForward:
    case Op::kForwardDrop:
    case Op::kRecompute:
    case Op::kBackward:
    case Op::kBackwardInput:
    case Op::kBackwardWeight:
    case Op::kWait:
    case Op::kNormGrad:
    case Op::kStep:
    case Op::kEvaluate:
      break;
  }
  PP_CHECK(false);
}

TimeSpent& TimeSpent::operator+=(const TimeSpent& other) {
  total += other.total;
  kernels += other.kernels;
  waiting += other.waiting;
  own += other.own;
  starting += other.starting;
  instructions += other.instructions;
  communication += other.communication;
  return *this;
}

void Recorder::Reserve(int64_t per_step, int64_t body, int64_t steps) {
  last_step_ = std::min(steps, std::max<int64_t>(1, kMaxEvents / std::max<int64_t>(1, body)));
  instructions_.reserve(last_step_ * per_step);
  times_.reserve(last_step_ * per_step);
}

void Recorder::AppendTo(std::vector<Event>* events) const {
  for (size_t i = 0; i < times_.size(); ++i)
    events->push_back({rank_, device_, instructions_[i].index, instructions_[i].step,
                       times_[i].start, times_[i].end - times_[i].start});
}

}  // namespace pp
