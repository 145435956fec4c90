// For calls that may never return.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace pp {

// Does something when it is not over in time.
class Deadline {
 public:
  // 0 seconds: never.
  Deadline(double seconds, std::function<void()> late);
  ~Deadline();

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace pp
