// When each task of a plan runs: as early as possible, or as late as possible within the same
// makespan. A device takes its list in order; a result from another device arrives `lag` after its
// producer's end. Linear in the number of tasks.
#pragma once

#include <vector>

#include "compiler/play/follow.h"
#include "compiler/search/problem.h"

namespace pp::search {

class Clock {
 public:
  explicit Clock(const Problem& problem);

  // As early as possible. The makespan; kNever if the lists wait for one another in a cycle, or if
  // it is certain to be above `cutoff`.
  double Earliest(const Plan& plan, double cutoff = kNever);
  // As late as possible. REQUIRES: Earliest succeeded.
  void Latest();

  // By task; REQUIRES: Earliest, Latest.
  double start(Task task) const { return end_[task] - problem_.time[task]; }
  double end(Task task) const { return end_[task]; }
  double latest_start(Task task) const { return latest_[task]; }
  double makespan() const { return makespan_; }
  // The tasks in an order in which they could run one by one.
  const std::vector<Task>& order() const { return order_; }
  // How many tasks have been timed so far: the search's measure of work.
  int64_t work() const { return work_; }

 private:
  friend Follower;
  size_t Size(int device) const { return plan_->lists[device].size(); }
  double Ready(int device, size_t index) const {
    const Task task = plan_->lists[device][index], source = problem_.source[task];
    return source < 0 ? 0 : end_[source] + problem_.lag[task];
  }
  bool Run(int device, Follower::Turn& turn, double ready);

  const Problem& problem_;
  const Plan* plan_ = nullptr;  // while it is timed
  double makespan_ = 0, cutoff_ = kNever;
  int64_t work_ = 0;
  std::vector<double> end_, latest_;  // by task; kNever: not timed
  std::vector<double> tail_;  // by task: a lower bound of what follows it, also on other devices
  std::vector<Task> order_;
  Follower follower_;
};

}  // namespace pp::search
