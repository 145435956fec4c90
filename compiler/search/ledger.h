// The memory along one device's list, which follows from the order alone.
//
//   list    F0   C1   B0   R1   B1
//   use      1  1.1  1.1  1.1  1.1     while the task runs; a limit holds for each of them
#pragma once

#include "compiler/search/problem.h"

namespace pp::search {

// What a task adds at its start and takes away at its end.
struct Change {
  int64_t up = 0, down = 0;
  int64_t net() const { return up + down; }
};
Change ChangeOf(const Problem& problem, const Plan& plan, Task task);

// Whether two neighbours of a list may change places: not those of one cell, not producer and user
// of a value, and gradients must be summed in their original order.
bool MaySwap(const Problem& problem, Task a, Task b);

// The most memory that a device's list holds at one time.
int64_t Peak(const Problem& problem, const Plan& plan, int device);
bool Fits(const Problem& problem, const Plan& plan);

// One device's list, with its memory kept up to date while tasks move.
class Ledger {
 public:
  Ledger(const Problem& problem, Plan& plan) : problem_(problem), plan_(plan) {}

  // Switches to a device's list in its current state.
  void Open(int device);

  int size() const { return static_cast<int>(list_->size()); }
  Task task(int at) const { return (*list_)[at]; }
  int64_t use(int at) const { return use_[at]; }
  int64_t limit() const { return limit_; }
  // Whether task `at` may be moved directly before `before`, at > before, given that it may be
  // moved before `before` + 1.
  bool FitsBefore(int at, int before) const;
  // Moves the task to another place and shifts those in between. REQUIRES: legal, and fits.
  void Move(int from, int to);

 private:
  const Problem& problem_;
  Plan& plan_;
  std::vector<Task>* list_ = nullptr;
  std::vector<int64_t> use_;
  std::vector<Change> changes_;
  int64_t limit_ = 0;
};

}  // namespace pp::search
