// Ends calls that do not return.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

namespace pp {

// Calls `late`, once, on a thread of its own, when a guarded call has not returned after `seconds`
// of this process's time: while all of it is stopped, none passes. Guarding a call costs two
// writes.
class CallGuard {
 public:
  // Throws std::system_error: there is no thread.
  CallGuard(double seconds, std::function<void()> late);
  ~CallGuard();

  // One call at a time.
  template <typename Call>
  auto Run(const Call& call) {
    calls_.fetch_add(1, std::memory_order_relaxed);  // odd: within a call
    auto result = call();
    calls_.fetch_add(1, std::memory_order_relaxed);
    return result;
  }
  bool late() const { return late_called_.load(); }

 private:
  void Watch();

  const int looks_;  // at one and the same call
  const std::function<void()> late_;
  std::atomic<int64_t> calls_{0};
  std::atomic<bool> late_called_{false};
  std::mutex mutex_;
  std::condition_variable condition_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace pp
