// A thread that has nothing to do sleeps on its bell; whoever has news for it rings.
//
//   uint64_t seen = bell.rings();
//   ... look for work; there is none ...
//   bell.Wait(seen);   // returns at once if it rang since
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace pp {

class Bell {
 public:
  uint64_t rings() const { return rings_.load(); }

  void Ring() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      rings_.store(rings_.load(std::memory_order_relaxed) + 1);
    }
    changed_.notify_all();
  }

  void Wait(uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return rings_.load() != seen; });
  }

  void WaitFor(uint64_t seen, std::chrono::microseconds limit) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return rings_.load() != seen; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<uint64_t> rings_{0};
};

}  // namespace pp
