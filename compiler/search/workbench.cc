#include "compiler/search/workbench.h"

#include <algorithm>
#include <utility>

namespace pp::search {
namespace {

// How much longer an event of the dispatcher takes than timing a task, including the polishing
// around it.
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
  if (makespan >= best_makespan_ - problem.tiny) return;
  best_ = plan;
  best_makespan_ = makespan;
  if (observer_) observer_(makespan - problem.lead);
}

void Workbench::OfferEqual(const Plan& plan, double makespan) {
  if (makespan <= best_makespan_) best_ = plan, best_makespan_ = makespan;
}

int64_t Workbench::Work() const { return clock.work() + kEvent * dispatcher.work(); }

int64_t Workbench::DispatcherWorkLeft() const { return (work_end_ - Work()) / kEvent; }

void Workbench::StopAfter(double seconds) {
  deadline_ = start_ + std::chrono::duration_cast<SteadyClock::duration>(
                           std::chrono::duration<double>(seconds));
}

bool Workbench::Finished() const {
  return best_makespan_ <= bound + problem.tiny || (deadline_ && SteadyClock::now() >= *deadline_);
}

}  // namespace pp::search
