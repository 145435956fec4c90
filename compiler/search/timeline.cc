#include "compiler/search/timeline.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "compiler/search/clock.h"
#include "compiler/search/ledger.h"

namespace pp::search {

Timeline::Timeline(const Problem& problem)
    : problem_(problem),
      position_(problem.time.size()),
      rank_(problem.time.size()),
      memory_(problem.time.size()),
      start_(problem.time.size()),
      tail_(problem.time.size()),
      waiting_(problem.time.size() / 64 + 1),
      mark_(problem.time.size()) {}

void Timeline::Load(const Plan& plan) {
  plan_ = plan;
  Clock clock(problem_);
  makespan_ = clock.Earliest(plan_);
  PP_CHECK(makespan_ != kNever);
  order_ = clock.order();
  std::fill(position_.begin(), position_.end(), -1);
  for (const auto& list : plan_.lists)
    for (size_t i = 0; i < list.size(); ++i) position_[list[i]] = static_cast<int>(i);
  for (Task task = 0; task < static_cast<Task>(position_.size()); ++task)
    if (position_[task] < 0) order_.push_back(task);
  for (size_t i = 0; i < order_.size(); ++i) {
    rank_[order_[i]] = static_cast<int>(i);
    start_[order_[i]] = position_[order_[i]] < 0 ? 0 : clock.start(order_[i]);
  }
  for (int cell = 0; cell < problem_.cells(); ++cell) SetDropped(cell, plan_.dropped[cell] != 0);
  touched_ = order_;
  Commit();
  work_ += static_cast<int64_t>(order_.size());
}

void Timeline::SetDropped(int cell, bool dropped) {
  plan_.dropped[cell] = dropped;
  for (Task task = 4 * cell; task < 4 * cell + 4; ++task)
    memory_[task] = ChangeOf(problem_, plan_, task);
}

void Timeline::Rotate(std::vector<Task>& list, int from, int to) {
  const auto begin = list.begin();
  if (from < to) {
    std::rotate(begin + from, begin + from + 1, begin + to + 1);
  } else {
    std::rotate(begin + to, begin + from, begin + from + 1);
  }
  for (int i = std::min(from, to); i <= std::max(from, to); ++i) position_[list[i]] = i;
}

void Timeline::SavePiece(Step step, int end) {
  step.pieces = pieces_.size();
  pieces_.insert(pieces_.end(), order_.begin() + step.rank, order_.begin() + end);
  steps_.push_back(step);
  last_changed_ = std::max(last_changed_, end - 1);
  work_ += (end - step.rank) / 8;
}

// Of the change's piece of the order.
void Timeline::Restore(const Step& step) {
  for (size_t i = step.pieces; i < pieces_.size(); ++i)
    Place(step.rank + static_cast<int>(i - step.pieces), pieces_[i]);
  pieces_.resize(step.pieces);
}

// The saved piece of the order, between a moved task and the one whose place it takes, is put into
// the order of the new lists: what the task needs goes first, or what needs it goes last. False:
// the other one is among those.
bool Timeline::Reorder(Task task, Task other, bool later) {
  const Step& step = steps_.back();
  const int size = static_cast<int>(pieces_.size() - step.pieces);
  const Task* piece = pieces_.data() + step.pieces;
  ++reorders_;
  reached_.clear();
  const auto marked = [&](Task t) { return t >= 0 && mark_[t] == reorders_; };
  int rank = later ? step.rank : step.rank + size - 1;
  for (int i = 0; i < size; ++i) {
    const Task next = later ? piece[i] : piece[size - 1 - i];
    const bool reached =
        next == task || (later ? marked(problem_.source[next]) || marked(Before(next))
                               : marked(problem_.sink[next]) || marked(After(next)));
    if (!reached) {
      Place(rank, next);
      rank += later ? 1 : -1;
      continue;
    }
    if (next == other) return false;
    mark_[next] = reorders_;
    reached_.push_back(next);
  }
  for (const Task next : reached_) {
    Place(rank, next);
    rank += later ? 1 : -1;
  }
  return true;
}

bool Timeline::Move(int device, int from, int to) {
  if (from == to) return true;
  auto& list = plan_.lists[device];
  const Task task = list[from], other = list[to];
  const auto [first, last] = std::minmax(rank_[task], rank_[other]);
  Touch(task);
  SavePiece({Kind::kMove, task, from, to, first}, last + 1);
  Rotate(list, from, to);
  if (!Reorder(task, other, from < to)) {
    Restore(steps_.back());
    steps_.pop_back();
    Rotate(list, to, from);
    return false;
  }
  Touch(task);
  return true;
}

void Timeline::Insert(int at, Task task) {
  auto& list = ListOf(task);
  list.insert(list.begin() + at, task);
  for (int i = at; i < static_cast<int>(list.size()); ++i) position_[list[i]] = i;
  SetDropped(CellOf(task), true);
}

void Timeline::Erase(Task task) {
  auto& list = ListOf(task);
  const int at = std::exchange(position_[task], -1);
  list.erase(list.begin() + at);
  for (int i = at; i < static_cast<int>(list.size()); ++i) position_[list[i]] = i;
  SetDropped(CellOf(task), false);
}

void Timeline::Drop(int cell) {
  const Task task = MakeTask(cell, Part::kRecompute), next = MakeTask(cell, Part::kBackward);
  const int at = position_[next];
  // In the order, too, it goes just before the backward.
  const int from = rank_[task], to = rank_[next] - (rank_[task] < rank_[next]);
  SavePiece({Kind::kDrop, task, at, at, std::min(from, to)}, std::max(from, to) + 1);
  for (int i = from; i < to; ++i) Place(i, order_[i + 1]);
  for (int i = from; i > to; --i) Place(i, order_[i - 1]);
  Place(to, task);
  Insert(at, task);
  Touch(task);
}

void Timeline::Keep(int cell) {
  const Task task = MakeTask(cell, Part::kRecompute);
  const int at = position_[task];
  SavePiece({Kind::kKeep, task, at, at, rank_[task]}, rank_[task] + 1);
  Touch(task);
  Erase(task);
}

int Timeline::FirstAbove(int device) {
  const int64_t limit = problem_.memory.limit[device];
  const auto& list = plan_.lists[device];
  int64_t level = 0;
  work_ += static_cast<int64_t>(list.size()) / 16;
  for (size_t i = 0; i < list.size(); ++i) {
    const Change& change = memory_[list[i]];
    if (level + change.up > limit) return static_cast<int>(i);
    level += change.net();
  }
  return -1;
}

double Timeline::StartOf(Task task) const {
  const Task before = Before(task), source = problem_.source[task];
  const double free = before < 0 ? 0 : end(before);
  return source < 0 ? free : std::max(free, end(source) + problem_.lag[task]);
}

double Timeline::TailOf(Task task) const {
  const Task after = After(task), sink = problem_.sink[task];
  const double own = after < 0 ? AfterLast(task) : problem_.time[after] + tail_[after];
  return sink < 0 ? own : std::max(own, problem_.lag[sink] + problem_.time[sink] + tail_[sink]);
}

double Timeline::Retime(double cutoff) {
  for (const Task task : touched_) Wait(task);
  for (size_t at = 0; at < waiting_.size(); ++at)
    while (waiting_[at] != 0) {
      const int rank = static_cast<int>(at * 64) + std::countr_zero(waiting_[at]);
      waiting_[at] &= waiting_[at] - 1;
      const Task task = order_[rank];
      const double start = StartOf(task);
      ++work_;
      if (start == start_[task]) continue;
      old_starts_.push_back({task, start_[task]});
      start_[task] = start;
      if (rank > last_changed_ && end(task) + tail_[task] > cutoff) {
        std::fill(waiting_.begin() + at, waiting_.end(), 0);
        return kNever;
      }
      Wait(After(task));
      Wait(problem_.sink[task]);
    }
  makespan_ = 0;
  for (const auto& list : plan_.lists)
    if (!list.empty()) makespan_ = std::max(makespan_, end(list.back()) + AfterLast(list.back()));
  return makespan_ > cutoff ? kNever : makespan_;
}

void Timeline::Commit() {
  for (const Task task : touched_) Wait(task);
  touched_.clear();
  for (size_t at = waiting_.size(); at-- > 0;)
    while (waiting_[at] != 0) {
      const size_t bit = 63 - static_cast<size_t>(std::countl_zero(waiting_[at]));
      waiting_[at] &= ~(uint64_t{1} << bit);
      const Task task = order_[at * 64 + bit];
      const double tail = TailOf(task);
      ++work_;
      if (tail == tail_[task]) continue;
      tail_[task] = tail;
      Wait(Before(task));
      Wait(problem_.source[task]);
    }
  steps_.clear();
  pieces_.clear();
  old_starts_.clear();
  last_changed_ = -1;
  committed_ = makespan_;
}

void Timeline::Undo() {
  touched_.clear();
  while (!old_starts_.empty()) {
    start_[old_starts_.back().task] = old_starts_.back().start;
    old_starts_.pop_back();
  }
  for (; !steps_.empty(); steps_.pop_back()) {
    const Step& step = steps_.back();
    Restore(step);
    switch (step.kind) {
      case Kind::kMove:
        Rotate(ListOf(step.task), step.to, step.from);
        break;
      case Kind::kDrop:
        Erase(step.task);
        break;
      case Kind::kKeep:
        Insert(step.from, step.task);
    }
  }
  last_changed_ = -1;
  makespan_ = committed_;
}

}  // namespace pp::search
