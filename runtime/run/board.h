// Between the ranks' threads, which leave messages, and the supervisor's, which takes them: reports
// until those of all ranks have arrived, and of each rank the last heartbeat.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/run/control.h"
#include "runtime/run/rank.h"

namespace pp {

// Any thread may call any function.
class Board {
 public:
  explicit Board(int ranks) : heartbeats_(ranks) {
    for (Slot& slot : slots_) slot.reports.resize(ranks);
  }

  void Put(int from, const ControlMessage& message) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (message.type != ControlMessage::Type::kReport) {
      heartbeats_[from].message = message;
      heartbeats_[from].fresh = true;
      return;
    }
    Slot& slot = slots_[message.step % slots_.size()];
    slot.reports[from] = message;
    ++slot.count;
  }

  // The reports of `step`, once all are here.
  bool Take(int64_t step, std::vector<ControlMessage>* reports) {
    std::lock_guard<std::mutex> lock(mutex_);
    Slot& slot = slots_[step % slots_.size()];
    if (slot.count < slot.reports.size()) return false;
    slot.count = 0;
    *reports = slot.reports;
    return true;
  }

  template <typename F>
  void TakeHeartbeats(const F& f) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t rank = 0; rank < heartbeats_.size(); ++rank)
      if (std::exchange(heartbeats_[rank].fresh, false))
        f(static_cast<int>(rank), heartbeats_[rank].message);
  }

 private:
  struct Slot {
    size_t count = 0;
    std::vector<ControlMessage> reports;
  };
  struct Heartbeat {
    bool fresh = false;
    ControlMessage message;
  };
  std::mutex mutex_;
  std::array<Slot, 2 * Rank::kReportsAhead> slots_;
  std::vector<Heartbeat> heartbeats_;
};

}  // namespace pp
