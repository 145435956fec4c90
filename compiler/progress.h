// What a command is doing, on stderr, for commands that take more than a second: after 1, 2, 4,
// 8 ... seconds a line "pipec: insert-comm (4 s)".
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace pp {

class Progress {
 public:
  explicit Progress(bool shown);
  ~Progress();
  void Doing(std::string what);

 private:
  void Watch();

  std::mutex mutex_;
  std::condition_variable over_;
  bool stop_ = false;
  std::string what_;
  std::thread thread_;
};

}  // namespace pp
