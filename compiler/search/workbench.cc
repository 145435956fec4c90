#include "compiler/search/workbench.h"

#include <algorithm>
#include <utility>

namespace pp::search {
namespace {

constexpr double kTiny = 1e-9;
// How much longer an event of the dispatcher takes than timing a task with all that the
// polish does about it.
constexpr int64_t kEvent = 3;

}  // namespace

Workbench::Workbench(const Problem& problem_in, double bound_in,
                     std::function<void(double)> observer)
    : problem(problem_in),
      bound(bound_in),
      clock(problem_in),
      dispatcher(problem_in),
      observer_(std::move(observer)) {}

void Workbench::Offer(const Plan& plan, double makespan) {
  if (makespan >= best_makespan_ - kTiny) return;
  best_ = plan;
  best_makespan_ = makespan;
  if (observer_) observer_(makespan);
}

int64_t Workbench::Work() const { return clock.work() + kEvent * dispatcher.work(); }

void Workbench::Allow(int64_t work) {
  work_begin_ = Work();
  work_end_ = work_begin_ + work;
  time_begin_ = time_end_ = std::nullopt;
}

void Workbench::AllowSeconds(double seconds) {
  time_begin_ = SteadyClock::now();
  time_end_ = *time_begin_ + std::chrono::duration_cast<SteadyClock::duration>(
                                 std::chrono::duration<double>(seconds));
}

double Workbench::Done() const {
  if (time_end_) {
    const std::chrono::duration<double> gone = SteadyClock::now() - *time_begin_;
    const std::chrono::duration<double> all = *time_end_ - *time_begin_;
    return std::min(1.0, gone / all);
  }
  return std::min(1.0, static_cast<double>(Work() - work_begin_) /
                           static_cast<double>(std::max<int64_t>(1, work_end_ - work_begin_)));
}

bool Workbench::Over() const { return best_makespan_ <= bound + kTiny || Done() >= 1; }

}  // namespace pp::search
