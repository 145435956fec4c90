// A plan whose order is changed step by step, with the time of each task kept up to date. What a
// change does not reach is not looked at again, and every change can be undone.
//
//   Move    F0 F1 B0 B1  =>  F0 B0 F1 B1      Drop    F0 F1 B0  =>  C0 F1 R0 B0      Keep    back
//
// The tasks of all lists stand in one order in which they could run one by one. A move reorders
// only what lies between its two places there, and finds a cycle on the way (Pearce and Kelly,
// 2006); times are then propagated in that order.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/search/ledger.h"
#include "compiler/search/problem.h"

namespace pp::search {

class Timeline {
 public:
  explicit Timeline(const Problem& problem);

  // Takes a plan. REQUIRES: its lists have no cycle.
  void Load(const Plan& plan);
  const Plan& plan() const { return plan_; }
  const std::vector<Task>& list(int device) const { return plan_.lists[device]; }
  int position(Task task) const { return position_[task]; }
  // The tasks before and after it on its device; -1: none.
  Task Before(Task task) const { return At(task, -1); }
  Task After(Task task) const { return At(task, 1); }

  // list[from] goes to place `to`. False: the lists would wait for one another; nothing changes.
  // REQUIRES: MaySwap with all tasks that it passes.
  bool Move(int device, int from, int to);
  // A cell recomputes just before its backward, or no longer.
  void Drop(int cell);
  void Keep(int cell);
  // The first place at which a device holds more than its limit; -1: none.
  int FirstAbove(int device);
  bool Frees(Task task) const { return memory_[task].net() < 0; }

  // Brings the times up to date after changes. Returns the makespan; kNever, and nothing is to be
  // asked before Undo, if it is above `cutoff`.
  double Retime(double cutoff);
  // By task, as of Retime.
  double start(Task task) const { return start_[task]; }
  double end(Task task) const { return start_[task] + problem_.time[task]; }
  double makespan() const { return makespan_; }

  // Undo takes back everything since the last Commit, times included.
  void Commit();
  void Undo();
  // How many tasks have been looked at so far, roughly: a measure of work.
  int64_t work() const { return work_; }

 private:
  enum class Kind : uint8_t { kMove, kDrop, kKeep };
  struct Step {
    Kind kind;
    Task task;
    int from, to;
    int rank;           // where the reordered piece of the order begins,
    size_t pieces = 0;  // and where what it was before begins in pieces_
  };

  std::vector<Task>& ListOf(Task task) { return plan_.lists[problem_.device[CellOf(task)]]; }
  Task At(Task task, int step) const {
    const auto& own = plan_.lists[problem_.device[CellOf(task)]];
    const int at = position_[task] + step;
    return position_[task] < 0 || at < 0 || at >= static_cast<int>(own.size()) ? -1 : own[at];
  }
  void Rotate(std::vector<Task>& list, int from, int to);
  void Place(int rank, Task task) {
    order_[rank] = task;
    rank_[task] = rank;
  }
  void SavePiece(Step step, int end);
  void Restore(const Step& step);
  bool Reorder(Task task, Task other, bool later);
  void SetDropped(int cell, bool dropped);
  void Insert(int at, Task task);
  void Erase(Task task);
  // What is beside the task changes.
  void Touch(Task task) {
    for (const Task t : {Before(task), task, After(task)}) touched_.push_back(t);
  }
  void Wait(Task task) {
    if (task < 0 || position_[task] < 0) return;
    const size_t rank = static_cast<size_t>(rank_[task]);
    waiting_[rank / 64] |= uint64_t{1} << rank % 64;
  }
  double StartOf(Task task) const;
  double TailOf(Task task) const;
  // REQUIRES: it is its device's last one.
  double AfterLast(Task task) const { return problem_.after[problem_.device[CellOf(task)]]; }

  const Problem& problem_;
  Plan plan_;
  std::vector<int> position_;   // by task: in its device's list; -1: in none
  std::vector<Task> order_;     // of all tasks, those in no list anywhere
  std::vector<int> rank_;       // by task: in order_
  std::vector<Change> memory_;  // by task
  std::vector<double> start_;   // by task
  std::vector<double> tail_;    // by task: from its end to the last one's at least, as of Commit
  double makespan_ = 0, committed_ = 0;
  std::vector<Task> touched_;      // since Commit: what is beside them has changed; or -1
  int last_changed_ = -1;          // since Commit: what ranks above has the tail that it had
  std::vector<uint64_t> waiting_;  // bits by rank: to be timed
  std::vector<Step> steps_;
  std::vector<Task> pieces_;
  struct OldStart {
    Task task;
    double start;
  };
  std::vector<OldStart> old_starts_;
  std::vector<uint32_t> mark_;  // by task: the reorder that reached it
  uint32_t reorders_ = 0;
  std::vector<Task> reached_;
  int64_t work_ = 0;
};

}  // namespace pp::search
