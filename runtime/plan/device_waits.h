// Where the compute queue of a device waits for other queues, instead of the compute thread: what
// that took, and where the device is.
#pragma once

#include <array>
#include <atomic>
#include <functional>

#include "runtime/device/device.h"

namespace pp {

// One thread adds; any thread may ask where the device waits.
class DeviceWaits {
 public:
  // How many may be ahead of the device: it never runs dry, and the host does not get so far ahead
  // that a launch waits for room in the queue (see also CudaKernelsOptions::most_ahead).
  static constexpr int64_t kMost = 16;

  // Of a wait that is over: where it was, and the seconds of the device's clock.
  using Over = std::function<void(int index, int64_t iteration, double begin, double end)>;
  explicit DeviceWaits(Over over) : over_(std::move(over)) {}

  // `compute` goes on after `ticket` of `stream`, for the instruction `index` of an iteration.
  // Returns when it has been told so, or with `stop`.
  void Add(int index, int64_t iteration, Queue* compute, const Queue& stream, Ticket ticket,
           Bell* bell, const std::atomic<bool>& stop);
  // Passes on those that are over.
  void Count();

  // Any thread: of the first that is not over, as far as the queue has told; -1: none.
  int current() const;

 private:
  struct Wait {
    std::atomic<int> index{-1};
    std::atomic<Ticket> end{0};
    int64_t iteration = 0;
    double begin_seconds = 0, end_seconds = 0;  // the device's, until the ticket is done
  };

  const Over over_;
  const Queue* compute_ = nullptr;
  std::array<Wait, kMost> waits_;  // by number
  std::atomic<int64_t> first_{0}, next_{0};
};

}  // namespace pp
