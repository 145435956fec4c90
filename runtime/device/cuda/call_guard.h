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
// of this process's time: while all of it is stopped, none passes. A call that returns before
// `late` begins is not late, and then it never begins. Guarding a call costs two writes.
class CallGuard {
 public:
  // Throws std::system_error: there is no thread.
  CallGuard(double seconds, std::function<void()> late);
  ~CallGuard();

  // One call at a time. REQUIRES: none has been late.
  template <typename Call>
  auto Run(const Call& call) {
    int64_t within = ++calls_;  // odd: within a call
    auto result = call();
    calls_.compare_exchange_strong(within, within + 1);
    return result;
  }
  bool late() const { return calls_.load() == kLate; }

 private:
  static constexpr int64_t kLate = -1;

  void Watch();

  const int looks_;  // at one and the same call
  const std::function<void()> late_;
  std::atomic<int64_t> calls_{0};
  std::mutex mutex_;
  std::condition_variable condition_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace pp
