// What all parts of the search share: the tools, the best plan so far, and how much work is left.
// Work is counted, not timed, so that the same input gives the same plan; a longer search may set a
// deadline instead.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <random>

#include "compiler/search/clock.h"
#include "compiler/search/dispatch.h"
#include "compiler/search/method.h"
#include "compiler/search/polish.h"
#include "compiler/search/problem.h"

namespace pp::search {

// A fixed sequence on every machine, unlike the distributions of <random>.
class Random {
 public:
  // An integer in [0, n). REQUIRES: n > 0.
  int Below(int n) { return static_cast<int>(bits_() % static_cast<uint64_t>(n)); }
  // A number in (0, 1].
  double Unit() { return static_cast<double>((bits_() >> 11) + 1) * 0x1p-53; }

 private:
  std::mt19937_64 bits_{1};
};

class Workbench {
 public:
  // `bound`: a lower bound of the makespan; reaching it ends the search. `observer`, if given, is
  // called with each better makespan.
  Workbench(const Problem& problem, double bound, std::function<void(double)> observer);

  const Problem& problem;
  const double bound;
  Clock clock;
  Dispatcher dispatcher;
  Random random;
  Method without = Method::kNone;
  bool Uses(Method method) const { return method != without; }

  const Plan& best() const { return best_; }
  double best_makespan() const { return best_makespan_; }
  // Keeps the plan if it is the best so far. REQUIRES: it fits.
  void Offer(const Plan& plan, double makespan);
  // Or if it is as fast: the search then goes on from there.
  void OfferEqual(const Plan& plan, double makespan);

  // Allows this much more work.
  void Allow(int64_t work) { work_end_ = Work() + work; }
  // How much of the allowed work the dispatcher may still do, in its own measure.
  int64_t DispatcherWorkLeft() const;
  // Stops everything this many seconds after the start.
  void StopAfter(double seconds);
  // Whether the allowed work is done.
  bool Over() const { return Finished() || Work() >= work_end_; }
  // Whether no more work can help: the bound is reached, or the time is up.
  bool Finished() const;

 private:
  int64_t Work() const;
  using SteadyClock = std::chrono::steady_clock;

  std::function<void(double)> observer_;
  Plan best_;
  double best_makespan_ = kNever;
  int64_t work_end_ = 0;
  const SteadyClock::time_point start_ = SteadyClock::now();
  std::optional<SteadyClock::time_point> deadline_;
};

}  // namespace pp::search
