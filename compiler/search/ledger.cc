#include "compiler/search/ledger.h"

#include <algorithm>

namespace pp::search {

Change ChangeOf(const Problem& problem, const Plan& plan, Task task) {
  const int cell = CellOf(task);
  const Held& held = problem.HeldBy(cell);
  const bool dropped = plan.dropped[cell] != 0;
  const int64_t full = dropped ? held.recomputed : held.forward;
  const int64_t half = dropped ? held.recomputed_half : held.input_half;
  auto step = [](int64_t change) {
    return Change{std::max<int64_t>(change, 0), std::min<int64_t>(change, 0)};
  };
  switch (PartOf(task)) {
    case Part::kForward:
      return step(dropped ? held.dropped : held.forward);
    case Part::kRecompute:
      return step(held.recomputed - held.dropped);
    case Part::kBackward:
      return step(problem.split[cell] ? half - full : -full);
    case Part::kWeight:
      return step(-half);
  }
  return {};
}

bool MaySwap(const Problem& problem, Task a, Task b) {
  const int cell_a = CellOf(a), cell_b = CellOf(b);
  if (cell_a == cell_b || problem.source[a] == b || problem.source[b] == a) return false;
  if (problem.sum[cell_a] != problem.sum[cell_b]) return true;
  if (PartOf(a) == Part::kBackward && PartOf(b) == Part::kBackward) return false;
  return !problem.AddsToSum(a) || !problem.AddsToSum(b);
}

int64_t Peak(const Problem& problem, const Plan& plan, int device) {
  int64_t level = 0, peak = 0;
  for (Task task : plan.lists[device]) {
    const Change change = ChangeOf(problem, plan, task);
    peak = std::max(peak, level + change.up);
    level += change.net();
  }
  return peak;
}

bool Fits(const Problem& problem, const Plan& plan) {
  for (int d = 0; d < problem.devices; ++d)
    if (Peak(problem, plan, d) > problem.memory.limit[d]) return false;
  return true;
}

void Ledger::Open(int device) {
  list_ = &plan_.lists[device];
  limit_ = problem_.memory.limit[device];
  use_.clear();
  changes_.clear();
  int64_t level = 0;
  for (Task task : *list_) {
    const Change change = ChangeOf(problem_, plan_, task);
    changes_.push_back(change);
    use_.push_back(level + change.up);
    level += change.net();
  }
}

bool Ledger::FitsBefore(int at, int before) const {
  const Change change = changes_[at];
  const int64_t level = use_[before] - changes_[before].up;
  return use_[before] + change.net() <= limit_ && level + change.up <= limit_ &&
         MaySwap(problem_, (*list_)[before], (*list_)[at]);
}

void Ledger::Move(int from, int to) {
  const Task task = (*list_)[from];
  const Change change = changes_[from];
  const int64_t level =
      to < from ? use_[to] - changes_[to].up : use_[to] + changes_[to].down - change.net();
  const int step = to < from ? -1 : 1;
  for (int i = from; i != to; i += step) {
    (*list_)[i] = (*list_)[i + step];
    changes_[i] = changes_[i + step];
    use_[i] = use_[i + step] - step * change.net();
  }
  (*list_)[to] = task;
  changes_[to] = change;
  use_[to] = level + change.up;
}

}  // namespace pp::search
