// Which file operation a thread waits for. A disk may take as long as it needs: whoever watches a
// run's progress tells this from a run that has stalled, and can say which file it is.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace pp {

class FileWatch {
 public:
  // Any thread. "fsync of saves/.saving-00000010/rank-1"; empty: no operation is under way.
  std::string current() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return current_;
  }
  // Any thread. How many have ended. Asked for after `current`, it counts what that did not show.
  int64_t ended() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return ended_;
  }

 private:
  friend class FileOperation;
  void Set(std::string text) {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ += text.empty();
    current_ = std::move(text);
  }
  mutable std::mutex mutex_;
  std::string current_;
  int64_t ended_ = 0;
};

// An operation, as long as this lives. One at a time on a watch.
class FileOperation {
 public:
  // `watch` null: nobody watches.
  FileOperation(FileWatch* watch, const char* call, const std::string& path) : watch_(watch) {
    if (watch_ != nullptr) watch_->Set(std::string(call) + " of " + path);
  }
  ~FileOperation() {
    if (watch_ != nullptr) watch_->Set("");
  }
  FileOperation(const FileOperation&) = delete;
  FileOperation& operator=(const FileOperation&) = delete;

 private:
  FileWatch* const watch_;
};

}  // namespace pp
