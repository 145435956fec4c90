#include "compiler/search/clock.h"

#include <algorithm>

namespace pp::search {

Clock::Clock(const Problem& problem) : problem_(problem) {
  const size_t tasks = problem.time.size();
  end_.assign(tasks, kNever);
  latest_.resize(tasks);
  tail_.assign(tasks, 0);
  auto follow = [&](Task task) {  // the longest chain after `task`
    const Task sink = problem.sink[task];
    return sink < 0 ? 0 : problem.lag[sink] + problem.time[sink] + tail_[sink];
  };
  for (int s = 0; s < problem.stages; ++s)
    for (int m = 0; m < problem.micros; ++m) {
      const int cell = problem.Cell(s, m);
      const double weight = problem.Time(cell, Part::kWeight);
      tail_[MakeTask(cell, Part::kBackward)] =
          std::max(weight, follow(MakeTask(cell, Part::kBackward)));
    }
  for (int s = problem.stages - 1; s >= 0; --s)
    for (int m = 0; m < problem.micros; ++m) {
      const int cell = problem.Cell(s, m);
      const Task forward = MakeTask(cell, Part::kForward), back = MakeTask(cell, Part::kBackward);
      const double own = problem.time[back] + tail_[back];
      tail_[forward] = std::max(own, follow(forward));
      tail_[MakeTask(cell, Part::kRecompute)] = own;
    }
}

double Clock::Earliest(const Plan& plan, double cutoff) {
  std::fill(end_.begin(), end_.end(), kNever);
  order_.clear();
  plan_ = &plan;
  cutoff_ = cutoff;
  const bool below = follower_.Run(problem_.devices, *this);
  work_ += static_cast<int64_t>(order_.size());
  if (!below) return kNever;
  makespan_ = 0;
  for (int d = 0; d < problem_.devices; ++d) {
    const Follower::Turn& turn = follower_.turn(d);
    if (turn.next < Size(d)) return kNever;
    makespan_ = std::max(makespan_, turn.time + problem_.after[d]);
  }
  return makespan_;
}

bool Clock::Run(int device, Follower::Turn& turn, double ready) {
  const Task task = plan_->lists[device][turn.next];
  end_[task] = turn.time = std::max(turn.time, ready) + problem_.time[task];
  if (turn.time + tail_[task] > cutoff_) return false;
  order_.push_back(task);
  const Task sink = problem_.sink[task];
  if (sink < 0) return true;
  const int other = problem_.device[CellOf(sink)];
  if (other == device) return true;
  const size_t next = follower_.turn(other).next;
  if (next < Size(other) && plan_->lists[other][next] == sink) follower_.Wake(other);
  return true;
}

void Clock::Latest() {
  std::vector<double> limits(problem_.devices);
  for (int d = 0; d < problem_.devices; ++d) limits[d] = makespan_ - problem_.after[d];
  for (size_t i = order_.size(); i-- > 0;) {
    const Task task = order_[i], sink = problem_.sink[task];
    double& limit = limits[problem_.device[CellOf(task)]];
    if (sink >= 0) limit = std::min(limit, latest_[sink] - problem_.lag[sink]);
    latest_[task] = limit -= problem_.time[task];
  }
  work_ += static_cast<int64_t>(order_.size());
}

}  // namespace pp::search
