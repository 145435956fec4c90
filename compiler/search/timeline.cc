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
      start_(problem.time.size()),
      waiting_(problem.time.size() / 64 + 1),
      mark_(problem.time.size()) {}

void Timeline::Load(const Plan& plan) {
  plan_ = plan;
  Clock clock(problem_);
  makespan_ = clock.Earliest(plan_);
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
  touched_.clear();
  Commit();
  work_ += static_cast<int64_t>(order_.size());
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

void Timeline::SavePiece(Change change, int end) {
  change.pieces = pieces_.size();
  pieces_.insert(pieces_.end(), order_.begin() + change.rank, order_.begin() + end);
  changes_.push_back(change);
  work_ += (end - change.rank) / 8;
}

// Of the change's piece of the order.
void Timeline::Restore(const Change& change) {
  for (size_t i = change.pieces; i < pieces_.size(); ++i)
    Place(change.rank + static_cast<int>(i - change.pieces), pieces_[i]);
  pieces_.resize(change.pieces);
}

// The saved piece of the order, between a moved task and the one whose place it takes, is put into
// the order of the new lists: what the task needs goes first, or what needs it goes last. False: the
// other one is among those.
bool Timeline::Reorder(Task task, Task other, bool later) {
  const Change& change = changes_.back();
  const int size = static_cast<int>(pieces_.size() - change.pieces);
  const Task* piece = pieces_.data() + change.pieces;
  ++reorders_;
  reached_.clear();
  const auto marked = [&](Task t) { return t >= 0 && mark_[t] == reorders_; };
  int rank = later ? change.rank : change.rank + size - 1;
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
  Touch(After(task));
  SavePiece({Kind::kMove, task, from, to, first}, last + 1);
  Rotate(list, from, to);
  if (!Reorder(task, other, from < to)) {
    Restore(changes_.back());
    changes_.pop_back();
    Rotate(list, to, from);
    return false;
  }
  Touch(task);
  Touch(After(task));
  return true;
}

void Timeline::Insert(int at, Task task) {
  auto& list = ListOf(task);
  list.insert(list.begin() + at, task);
  for (int i = at; i < static_cast<int>(list.size()); ++i) position_[list[i]] = i;
  plan_.dropped[CellOf(task)] = 1;
}

void Timeline::Erase(Task task) {
  auto& list = ListOf(task);
  const int at = std::exchange(position_[task], -1);
  list.erase(list.begin() + at);
  for (int i = at; i < static_cast<int>(list.size()); ++i) position_[list[i]] = i;
  plan_.dropped[CellOf(task)] = 0;
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
  Touch(next);
}

void Timeline::Keep(int cell) {
  const Task task = MakeTask(cell, Part::kRecompute);
  const int at = position_[task];
  SavePiece({Kind::kKeep, task, at, at, 0}, 0);
  Touch(After(task));
  Erase(task);
}

int Timeline::FirstAbove(int device) const {
  const int64_t limit = problem_.memory.limit[device];
  const auto& list = plan_.lists[device];
  int64_t level = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto change = ChangeOf(problem_, plan_, list[i]);
    if (level + change.up > limit) return static_cast<int>(i);
    level += change.net();
  }
  return -1;
}

double Timeline::Retime() {
  size_t word = waiting_.size();
  const auto wait = [&](Task task) {
    if (task < 0 || position_[task] < 0) return;
    const size_t rank = static_cast<size_t>(rank_[task]);
    waiting_[rank / 64] |= uint64_t{1} << rank % 64;
    word = std::min(word, rank / 64);
  };
  for (const Task task : touched_) wait(task);
  touched_.clear();
  const size_t first = word;
  for (size_t at = first; at < waiting_.size(); ++at)
    while (waiting_[at] != 0) {
      const Task task = order_[at * 64 + static_cast<size_t>(std::countr_zero(waiting_[at]))];
      waiting_[at] &= waiting_[at] - 1;
      const Task before = Before(task), source = problem_.source[task];
      double start = before < 0 ? 0 : end(before);
      if (source >= 0) start = std::max(start, end(source) + problem_.lag[task]);
      ++work_;
      if (start == start_[task]) continue;
      old_starts_.push_back({task, start_[task]});
      start_[task] = start;
      wait(After(task));
      wait(problem_.sink[task]);
    }
  makespan_ = 0;
  for (const auto& list : plan_.lists)
    if (!list.empty()) makespan_ = std::max(makespan_, end(list.back()));
  return makespan_;
}

void Timeline::Commit() {
  changes_.clear();
  pieces_.clear();
  old_starts_.clear();
  committed_ = makespan_;
}

void Timeline::Undo() {
  touched_.clear();
  while (!old_starts_.empty()) {
    start_[old_starts_.back().task] = old_starts_.back().start;
    old_starts_.pop_back();
  }
  for (; !changes_.empty(); changes_.pop_back()) {
    const Change& change = changes_.back();
    if (change.kind == Kind::kKeep) {
      Insert(change.from, change.task);
      continue;
    }
    Restore(change);
    if (change.kind == Kind::kMove) {
      Rotate(ListOf(change.task), change.to, change.from);
    } else {
      Erase(change.task);
    }
  }
  makespan_ = committed_;
}

}  // namespace pp::search
