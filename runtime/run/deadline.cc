#include "runtime/run/deadline.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace pp {

Deadline::Deadline(double seconds, std::function<void()> late) {
  if (seconds <= 0) return;
  const auto watch = [this, seconds, late = std::move(late)] {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!condition_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return over_; }))
      late();
  };
  try {
    thread_ = std::thread(watch);
  } catch (const std::system_error&) {
    // If no thread can be started nobody watches.
  }
}

Deadline::~Deadline() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
  }
  condition_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace pp
