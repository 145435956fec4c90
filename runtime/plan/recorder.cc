#include "runtime/plan/recorder.h"

#include <algorithm>

namespace pp {

CommKind CommKindOf(Op op) {
  switch (Info(op).delivers) {
    case Kind::kAct:
    case Kind::kGrad:
      return CommKind::kMessages;
    case Kind::kWgrad:
      return CommKind::kGradients;
    case Kind::kTied:
      return CommKind::kTied;
    case Kind::kNorm:
      return CommKind::kNorm;
    case Kind::kWeights:
      return CommKind::kWeights;
    default:
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
    events->push_back({rank_, device_, routine_, instructions_[i].index, instructions_[i].step,
                       times_[i].start, times_[i].end - times_[i].start});
}

}  // namespace pp
