// What repeats in a plan for many micro-batches: after its first ones it comes back again and again
// to where it was, so it is enough to plan one such period among a few, and to repeat it.
//
//   head     period  period  tail           head     period  period  period  period  tail
//   F0 F1  | B0 F2 | B1 F3 | B2 B3    =>    F0 F1  | B0 F2 | B1 F3 | B2 F4 | B3 F5 | B4 B5
#pragma once

#include <optional>
#include <vector>

#include "compiler/search/clock.h"
#include "compiler/search/problem.h"

namespace pp::search {

// A pipeline with some of its micro-batches, numbered anew.
class Selection {
 public:
  // REQUIRES: `of` outlives it; no micro-batch is listed twice.
  Selection(const Problem& of, std::vector<int> micros);

  const Problem& problem() const { return problem_; }
  // The plan without the other micro-batches.
  Plan Select(const Plan& plan) const;
  // REQUIRES: all micro-batches are selected.
  Plan Original(const Plan& plan) const;

 private:
  const Problem& of_;
  Problem problem_;
  std::vector<int> micros_, index_;  // theirs by ours, and ours by theirs, or -1
};

// In the order in which they begin in the plan.
std::vector<int> AsTheyBegin(const Problem& problem, const Plan& plan);

// A piece of a pipeline whose micro-batches are planned alike: from `begin` on `copies` periods.
struct Cycle {
  int begin = 0, period = 1, copies = 0;

  bool Has(int micro) const { return begin <= micro && micro < begin + period * copies; }
  int CopyOf(int micro) const { return (micro - begin) / period; }
};

// `plan` with the period from `begin` on repeated, every `time`, until there are as many
// micro-batches as `to` has: each device's tasks in the order of their times. REQUIRES: `clock` has
// timed `plan`; `to` has more micro-batches by a multiple of the period.
Plan RepeatInTime(const Problem& problem, const Plan& plan, const Clock& clock, int begin,
                  int period, double time, const Problem& to);

// `plan` with the period in the middle of the cycle repeated as it stands in the lists. Nothing if
// it is mixed with tasks from before or behind the cycle.
std::optional<Plan> RepeatInOrder(const Problem& problem, const Plan& plan, const Cycle& cycle,
                                  const Problem& to);

}  // namespace pp::search
