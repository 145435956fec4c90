// Lines for people and programs that may not read them: a paused terminal, `less`, a broken
// network. They are queued, and a thread of its own writes them, so that nobody waits; what does
// not fit in the queue is dropped, counted and said.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "schema/base/status.h"

namespace pp {

// Writes to a pipe, a terminal or a socket without waiting in the system call. While nobody reads,
// it asks `waits`, several times a second, whether to go on waiting. Returns 0, an errno, or EAGAIN
// where it has given up. What is written of *bytes is removed from it.
int WriteWhile(int descriptor, std::string_view* bytes, const std::function<bool()>& waits);

// Another descriptor of the same, where it is a pipe or a terminal one that does not wait although
// others write there as well. Negative: there is none.
int OpenAgain(int descriptor);

class LineWriter {
 public:
  // What becomes of lines that are dropped.
  enum class Gaps { kSaid, kFailed };  // a line says how many; an error does
  // `name` is the descriptor's, in errors. Throws std::system_error: there is no thread.
  LineWriter(std::string name, int descriptor, size_t queue_bytes, Gaps gaps);
  // Gives up what is not written.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Any thread; does not wait. Failed: it cannot be written any more, or lines are dropped; each is
  // said once.
  Status Add(std::string_view lines);

  // Waits until all is written, as long as `waits` says, which is told several times a second how
  // many seconds nothing has been read. Failed: it could not be.
  Status Drain(const std::function<bool(double silent)>& waits);

 private:
  void Main();
  void SayGap();
  Status Once(bool* said, const std::string& what);

  const std::string name_;
  const int own_;  // negative: none
  const int descriptor_;
  const size_t most_;
  const Gaps gaps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string queue_, writing_;
  int64_t dropped_ = 0;  // lines, that nothing says yet
  int error_ = 0;
  bool said_error_ = false, said_gap_ = false, leaves_ = false, busy_ = false;
  std::atomic<int64_t> written_{0};  // bytes
  std::thread thread_;
};

}  // namespace pp
