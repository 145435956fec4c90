#include "runtime/run/deadline.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {

Deadline::Deadline(std::function<void()> late)
    : late_(std::move(late)), thread_([this] { Watch(); }) {}

Deadline::~Deadline() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  condition_.notify_all();
  thread_.join();
}

void Deadline::Set(double seconds) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = seconds > 0 ? seconds : std::numeric_limits<double>::infinity();
  }
  condition_.notify_all();
}

void Deadline::Watch() {
  constexpr std::chrono::milliseconds kLook{100};
  AwakeClock clock;
  std::unique_lock<std::mutex> lock(mutex_);
  while (!over_) {
    if (std::isinf(left_)) {
      condition_.wait(lock);
      clock.Lap();
      continue;
    }
    condition_.wait_for(lock, kLook);
    left_ -= clock.Lap();
    if (over_ || left_ > 0) continue;
    left_ = std::numeric_limits<double>::infinity();
    lock.unlock();
    late_();
    lock.lock();
  }
}

}  // namespace pp
