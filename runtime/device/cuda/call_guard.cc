#include "runtime/device/cuda/call_guard.h"

#include <algorithm>
#include <chrono>

namespace pp {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{250};

}  // namespace

CallGuard::CallGuard(double seconds, std::function<void()> late)
    : looks_(std::max(1, static_cast<int>(seconds * 1000 / kBetweenLooks.count()))),
      late_(std::move(late)),
      thread_([this] { Watch(); }) {}

CallGuard::~CallGuard() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  condition_.notify_all();
  thread_.join();
}

void CallGuard::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  int64_t seen = 0;
  int looks = 0;
  while (!condition_.wait_for(lock, kBetweenLooks, [this] { return ended_; })) {
    int64_t now = calls_.load();
    looks = now == seen && now % 2 == 1 ? looks + 1 : 0;
    seen = now;
    if (looks < looks_ || !calls_.compare_exchange_strong(now, kLate)) continue;
    late_();
    return;
  }
}

}  // namespace pp
