// The fastest plan that fits, as far as the search finds it: starts from several policies and from
// the given plans, polishes each, and improves the best ones by local search.
#pragma once

#include <functional>
#include <optional>

#include "compiler/search/method.h"
#include "compiler/search/problem.h"

namespace pp::search {

// The fixed amount of local search: a number of turns, and how much of a full turn's work, about
// half a second for a thousand cells, each of them gets.
struct Effort {
  int turns = 2;
  double share = 1;
  enum { kBest, kSeveral } starts = kBest;  // from the best plan alone, or from others as well
};

struct SearchOptions {
  Effort effort;
  double seconds = 0;                 // to go on until then
  std::optional<double> lower_bound;  // that is known already
  Method without = Method::kNone;
  // Called with each better one; as the outcome's, less the problem's lead.
  std::function<void(double makespan)> progress;
};

struct SearchOutcome {
  Plan plan;
  double lower_bound = 0;
};

// `starts`: the scheme's order, or that after passes, and perhaps others. The outcome is never
// slower than those that fit, nor than the same orders without recomputes; if the problem is large,
// than the most promising one of them. REQUIRES: at least one; no device's limit is below
// SmallestLimits.
SearchOutcome Search(const Problem& problem, const std::vector<Plan>& starts,
                     const SearchOptions& options);

// Whether so many are too many for local search to pay.
bool IsLarge(int cells);

// The least memory with which each device can do its part, whatever the time.
std::vector<int64_t> SmallestLimits(const Problem& problem);

}  // namespace pp::search
