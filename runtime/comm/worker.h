// A thread that is there from the start for work that comes later: at the end of a run there may be
// none to be had.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "schema/base/status.h"

namespace pp {

class Worker {
 public:
  // Throws std::system_error: there is no thread.
  Worker() : thread_([this] { Main(); }) {}
  // Waits for the work.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // REQUIRES: earlier work is over.
  void Start(std::function<void()> work);
  // Whether the work is over; waits for it so long.
  bool IsOver(std::chrono::milliseconds wait = {});
  void Wait();

 private:
  void Main();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;  // empty: none
  bool leaves_ = false;
  std::thread thread_;
};

// What `work` returns, or Failed, if there is no memory or no thread for it.
Status Caught(const std::function<Status()>& work);

}  // namespace pp
