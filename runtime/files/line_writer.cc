#include "runtime/files/line_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <utility>

#include "runtime/comm/clock.h"

namespace pp {
namespace {

constexpr int kLookMilliseconds = 100;

}  // namespace

int OpenAgain(int descriptor) {
  struct stat stat;
  int again = -1;
  if (fstat(descriptor, &stat) == 0 && (S_ISFIFO(stat.st_mode) || isatty(descriptor) != 0))
    again = open(fmt::format("/proc/self/fd/{}", descriptor).c_str(),
                 O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  return again >= 0 ? again : fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

int WriteWhile(int descriptor, std::string_view* bytes, const std::function<bool()>& waits) {
  while (!bytes->empty()) {
    pollfd ready{.fd = descriptor, .events = POLLOUT, .revents = 0};
    const int polled = poll(&ready, 1, kLookMilliseconds);
    if (polled == 0 || (polled < 0 && errno == EINTR)) {
      if (!waits()) return EAGAIN;
      continue;
    }
    // A pipe that is ready takes so much at once.
    const ssize_t written =
        write(descriptor, bytes->data(), std::min<size_t>(bytes->size(), PIPE_BUF));
    if (written > 0) bytes->remove_prefix(static_cast<size_t>(written));
    if (written >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    if (!waits()) return EAGAIN;
  }
  return 0;
}

LineWriter::LineWriter(std::string name, int descriptor, size_t queue_bytes, Gaps gaps)
    : name_(std::move(name)),
      own_(OpenAgain(descriptor)),
      descriptor_(own_ >= 0 ? own_ : descriptor),
      most_(queue_bytes),
      gaps_(gaps) {
  queue_.reserve(most_);
  writing_.reserve(most_);
  thread_ = std::thread([this] { Main(); });
}

LineWriter::~LineWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaves_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (own_ >= 0) close(own_);
}

Status LineWriter::Add(std::string_view lines) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != 0)
    return Once(&said_error_, fmt::format("cannot be written: {}", std::strerror(error_)));
  SayGap();
  if (dropped_ > 0 || queue_.size() + lines.size() > most_) {
    dropped_ += std::count(lines.begin(), lines.end(), '\n');
    if (gaps_ == Gaps::kSaid) return {};
    return Once(&said_gap_, "nobody reads it: lines are left out");
  }
  queue_ += lines;
  changed_.notify_all();
  return {};
}

// Where there is room again.
void LineWriter::SayGap() {
  if (dropped_ == 0) return;
  std::string gap;
  if (gaps_ == Gaps::kSaid)
    gap = fmt::format("({} lines are missing here: nobody read them)\n", dropped_);
  if (queue_.size() + gap.size() > most_ / 2) return;
  queue_ += gap;
  dropped_ = 0;
  changed_.notify_all();
}

Status LineWriter::Once(bool* said, const std::string& what) {
  return std::exchange(*said, true) ? Status() : Status::Failed(fmt::format("{}: {}", name_, what));
}

Status LineWriter::Drain(const std::function<bool(double)>& waits) {
  AwakeClock clock;
  double silent = 0;
  int64_t seen = written_.load();
  std::unique_lock<std::mutex> lock(mutex_);
  const auto all_written = [this] { return !busy_ && queue_.empty() && dropped_ == 0; };
  while (error_ == 0 && !all_written()) {
    SayGap();
    changed_.wait_for(lock, std::chrono::milliseconds(kLookMilliseconds));
    const double lap = clock.Lap();
    const int64_t now = written_.load();
    silent = now == seen ? silent + lap : 0;
    seen = now;
    if (!waits(silent)) break;
  }
  if (error_ != 0)
    return Once(&said_error_, fmt::format("cannot be written: {}", std::strerror(error_)));
  if (all_written()) return {};
  return Status::Failed(fmt::format("{}: nobody reads it: its last lines are not written", name_));
}

void LineWriter::Main() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto stays = [this] {
    std::lock_guard<std::mutex> guard(mutex_);
    return !leaves_;
  };
  while (error_ == 0) {
    changed_.wait(lock, [this] { return !queue_.empty() || leaves_; });
    if (leaves_) return;
    writing_.swap(queue_);
    queue_.clear();
    busy_ = true;
    lock.unlock();
    std::string_view left = writing_;
    int error = 0;
    while (!left.empty() && error == 0) {
      std::string_view piece = left.substr(0, PIPE_BUF);
      const size_t before = piece.size();
      error = WriteWhile(descriptor_, &piece, stays);
      written_ += static_cast<int64_t>(before - piece.size());
      left.remove_prefix(before - piece.size());
    }
    lock.lock();
    busy_ = false;
    error_ = error == EAGAIN ? 0 : error;
    changed_.notify_all();
  }
}

}  // namespace pp
