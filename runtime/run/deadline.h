// For calls that may never return.
#pragma once

#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

namespace pp {

// Does something, on a thread that it holds from the start, when what it watches is not over in
// time. Time in which the whole process is stopped does not count.
class Deadline {
 public:
  // Throws std::system_error: there is no thread.
  explicit Deadline(std::function<void()> late);
  ~Deadline();

  // So many seconds from now; 0: never. Replaces an earlier time.
  void Set(double seconds);

 private:
  void Watch();

  const std::function<void()> late_;
  std::mutex mutex_;
  std::condition_variable condition_;
  double left_ = std::numeric_limits<double>::infinity();
  bool over_ = false;
  std::thread thread_;
};

}  // namespace pp
