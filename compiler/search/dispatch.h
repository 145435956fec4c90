// Builds a plan from scratch: whenever a device is free it takes the best task that it may start,
// or waits. Forwards and backwards of a device each keep their order; how they mix, which cells
// recompute, and where, follows from rules and time.
//
// A task that takes memory starts only if the device can still be drained afterwards: all
// backwards in order, whatever they still need done first. So no device gets stuck.
#pragma once

#include <optional>
#include <vector>

#include "compiler/play/follow.h"
#include "compiler/play/player.h"
#include "compiler/search/problem.h"
#include "compiler/search/rules.h"

namespace pp::search {

class Dispatcher {
 public:
  static constexpr int64_t kAnyWork = INT64_MAX / 2;

  explicit Dispatcher(const Problem& problem);

  // The makespan; kNever if the orders cannot be followed within the limit, or if it would be above
  // `cutoff`, or take more work than `most_work`.
  double Run(const Rules& rules, double cutoff = kNever, int64_t most_work = kAnyWork);
  // Whether each device could follow its orders within its limit if everything it waits for were
  // available.
  bool MayFollow(const Rules& rules);
  const Plan& plan() const { return plan_; }
  // Events, and the work of looking ahead in as many.
  int64_t work() const { return player_.events_seen() + looked_ahead_ / kStepsPerEvent; }

  // For the player: the best task that the device may start.
  std::optional<double> Choose(int device, double now);

 private:
  static constexpr int64_t kStepsPerEvent = 6;
  enum class State : uint8_t { kWaiting, kKept, kDropped, kRecomputed, kDone };
  // One cell while the plan grows.
  struct Cell {
    const Held* held;
    int rank;  // its place among its device's forwards
    State state;
  };
  // One device.
  struct Place {
    size_t next_forward, next_backward, next_weight;
    int64_t memory, limit;
    int in_flight;
    std::vector<int> weights;  // cells whose weight half is still to come
  };

  void Reset();
  Task Best(int device, double now);
  Task AfterItsSum(int device, Task backward) const;
  Task ChooseForward(int device, double now);
  bool Starves(int cell, double now) const;
  void Start(int device, Task task, double now);
  enum class Until { kEmpty, kEnd };
  bool Drains(int device, Until until) const;
  bool MayForward(int device, int cell, State state);
  bool MayRecompute(int device, int cell);
  int FirstDropped(int device) const;
  int64_t HalfOf(int cell) const;

  const Problem& problem_;
  const Rules* rules_ = nullptr;
  Plan plan_;
  std::vector<Place> places_;
  std::vector<Cell> cells_;
  std::vector<double> arrival_;  // by task: when its source's result arrives
  double makespan_ = 0, cutoff_ = kNever;
  int64_t work_end_ = 0;
  mutable int64_t looked_ahead_ = 0;
  Player<Dispatcher> player_;
};

}  // namespace pp::search
