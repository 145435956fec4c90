#include "compiler/progress.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <chrono>
#include <iostream>

#include "schema/base/status.h"

namespace pp {

Progress::Progress(bool shown) : what_("starting") {
  if (shown) thread_ = std::thread([this] { Watch(); });
}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  over_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Progress::Doing(std::string what) {
  const std::lock_guard lock(mutex_);
  what_ = std::move(what);
}

void Progress::Watch() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (int seconds = 1;; seconds *= 2) {
    if (over_.wait_until(lock, begin + std::chrono::seconds(seconds), [this] { return stop_; }))
      return;
    fmt::print(std::cerr, "pipec: {} ({} s)\n", OneLine(what_), seconds);
  }
}

}  // namespace pp
