#include "runtime/comm/worker.h"

#include <new>
#include <system_error>
#include <utility>

#include "runtime/comm/host_memory.h"

namespace pp {

Worker::~Worker() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    leaves_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Worker::Start(std::function<void()> work) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
  }
  changed_.notify_all();
}

bool Worker::IsOver(std::chrono::milliseconds wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, wait, [this] { return !work_; });
}

void Worker::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !work_; });
}

void Worker::Main() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return work_ || leaves_; });
    if (!work_) return;
    lock.unlock();
    work_();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

Status Caught(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status::Failed("out of memory" + LimitText());
  } catch (const std::system_error& error) {
    return Status::Failed(error.what() + LimitText());
  }
}

}  // namespace pp
