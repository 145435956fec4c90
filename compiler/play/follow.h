// Follows lists whose order is given: each device goes on until something that it needs has no time
// yet, and again once that has. The order in which the devices take their turns does not change any
// time, since each follows from its own list and from what arrives. Linear in the instructions. A
// rule that has no list is played event by event (player.h).
//
// A policy has
//   size_t Size(int device)                    how long the list is
//   double Ready(int device, size_t index)     when all that it needs will have arrived; kNever:
//                                              that is not known yet
//   bool Run(int device, Turn& turn, double ready)
//                                              does what the device, free at turn.time, does next:
//                                              list[turn.next], perhaps after something that is in
//                                              no list; advances turn.time, wakes those that wait
//                                              for it, and says whether to go on at all
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace pp {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

class Follower {
 public:
  // Where a device is in its list, and when it is free.
  struct Turn {
    size_t next = 0;
    double time = 0;
  };

  // False: the policy said so.
  template <typename Policy>
  bool Run(int devices, Policy& policy) {
    turns_.assign(devices, {});
    awake_.clear();
    for (int d = devices - 1; d >= 0; --d) Wake(d);
    while (!awake_.empty()) {
      const int device = awake_.back();
      awake_.pop_back();
      Turn turn = turns_[device];
      for (const size_t size = policy.Size(device); turn.next < size; ++turn.next) {
        const double ready = policy.Ready(device, turn.next);
        if (ready == kNever) break;
        if (!policy.Run(device, turn, ready)) return false;
      }
      turns_[device] = turn;
    }
    return true;
  }

  // What another device waited for has a time now.
  void Wake(int device) { awake_.push_back(device); }
  // Of a device that is not running.
  const Turn& turn(int device) const { return turns_[device]; }

 private:
  std::vector<Turn> turns_;
  std::vector<int> awake_;
};

}  // namespace pp
