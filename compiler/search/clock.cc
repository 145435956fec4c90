#include "compiler/search/clock.h"

#include <algorithm>

namespace pp::search {

Clock::Clock(const Problem& problem) : problem_(problem) {
  const size_t tasks = problem.time.size();
  end_.assign(tasks, -1);
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
  std::fill(end_.begin(), end_.end(), -1);
  order_.clear();
  next_.assign(problem_.devices, 0);
  free_.assign(problem_.devices, 0);
  awake_.clear();
  makespan_ = 0;
  size_t tasks = 0;
  for (int d = problem_.devices - 1; d >= 0; --d) {
    awake_.push_back(d);
    tasks += plan.lists[d].size();
  }
  while (!awake_.empty()) {
    const int d = awake_.back();
    awake_.pop_back();
    const std::vector<Task>& list = plan.lists[d];
    double time = free_[d];
    size_t i = next_[d];
    for (; i < list.size(); ++i) {
      const Task task = list[i], source = problem_.source[task];
      if (source >= 0) {
        if (end_[source] < 0) break;
        time = std::max(time, end_[source] + problem_.lag[task]);
      }
      end_[task] = time += problem_.time[task];
      if (time + tail_[task] > cutoff) {
        work_ += static_cast<int64_t>(order_.size());
        return kNever;
      }
      order_.push_back(task);
      const Task sink = problem_.sink[task];
      if (sink < 0) continue;
      const int other = problem_.device[CellOf(sink)];
      if (other != d && next_[other] < plan.lists[other].size() &&
          plan.lists[other][next_[other]] == sink)
        awake_.push_back(other);
    }
    next_[d] = i;
    free_[d] = time;
    makespan_ = std::max(makespan_, time);
  }
  work_ += static_cast<int64_t>(order_.size());
  if (order_.size() < tasks) return kNever;
  return makespan_;
}

void Clock::Latest() {
  free_.assign(problem_.devices, makespan_);
  for (size_t i = order_.size(); i-- > 0;) {
    const Task task = order_[i], sink = problem_.sink[task];
    double& limit = free_[problem_.device[CellOf(task)]];
    if (sink >= 0) limit = std::min(limit, latest_[sink] - problem_.lag[sink]);
    latest_[task] = limit -= problem_.time[task];
  }
  work_ += static_cast<int64_t>(order_.size());
}

}  // namespace pp::search
