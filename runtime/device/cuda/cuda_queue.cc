#include "runtime/device/cuda/cuda_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/sum_parts.h"
#include "runtime/comm/clock.h"
#include "runtime/device/activations.h"

namespace pp {
CudaQueue::CudaQueue(const Args& args)
    : args_(args),
      stream_(args.driver->MakeStream(args.priority)),
      ring_(args.pinned, kPinnedBytes),
      stamp_(args.origin),
      stamp_seconds_(args.origin_seconds) {}

CudaDriver::Event CudaQueue::TakeEvent() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.empty()) return args_.driver->MakeEvent();
  const CudaDriver::Event event = events_.back();
  events_.pop_back();
  return event;
}

std::byte* CudaQueue::TakePinned(int64_t bytes) {
  std::byte* piece = nullptr;
  finished_.WaitUntil([&] {
    std::lock_guard<std::mutex> lock(mutex_);
    piece = ring_.Take(bytes);
    return piece != nullptr;
  });
  return piece;
}

Ticket CudaQueue::Put(Work work) {
  work.end = TakeEvent();
  args_.driver->Record(work.end, stream_);
  work.ticket = ++last_;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(work);
  }
  submitted_.store(last_);
  args_.watcher->Ring();
  return last_;
}

Ticket CudaQueue::Submit(StageExecutor& executor, const StageCall& call) {
  const double processor = ThreadSeconds();
  args_.driver->Use();
  const CudaDriver::Event begin = TakeEvent();
  args_.driver->Record(begin, stream_);
  executor.Run(call);
  processor_ += ThreadSeconds() - processor;
  return Put({.begin = begin});
}

Ticket CudaQueue::Sum(const SumArgs& args) {
  PP_CHECK(args.parts.size() <= kernels::kMostParts);
  args_.driver->Use();
  ForActivations(args.dtype,
                 [&]<typename N>() { kernels::cuda::SumParts(SumPartsOf<N>(args), stream_); });
  return Put({});
}

Ticket CudaQueue::CopyIn(void* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const int64_t piece = std::min(kPieceBytes, bytes - at);
    std::byte* pinned = TakePinned(piece);
    std::memcpy(pinned, static_cast<const std::byte*>(from) + at, piece);
    args_.driver->Copy(static_cast<std::byte*>(to) + at, pinned, piece, stream_);
    Put({.pinned = pinned, .pinned_bytes = piece});
  }
  return last_;
}

Ticket CudaQueue::CopyOut(void* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPieceBytes) {
    const int64_t piece = std::min(kPieceBytes, bytes - at);
    std::byte* pinned = TakePinned(piece);
    args_.driver->Copy(pinned, static_cast<const std::byte*>(from) + at, piece, stream_);
    Put({.to = static_cast<std::byte*>(to) + at, .pinned = pinned, .pinned_bytes = piece});
  }
  return last_;
}

Ticket CudaQueue::Copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) args_.driver->Copy(to, from, bytes, stream_);
  return Put({});
}

Ticket CudaQueue::Stamp(double* seconds) { return Put({.seconds = seconds}); }

// The other queue's watcher reuses an event once it is reached: not while this holds its mutex.
void CudaQueue::Follow(const Queue& other, Ticket ticket) {
  const auto& leader = static_cast<const CudaQueue&>(other);
  std::lock_guard<std::mutex> lock(leader.mutex_);
  if (leader.work_.empty() || ticket < leader.work_.front().ticket) return;  // it is done
  const auto index = static_cast<size_t>(ticket - leader.work_.front().ticket);
  PP_CHECK(index < leader.work_.size());
  args_.driver->WaitFor(stream_, leader.work_[index].end);
}

QueueTime CudaQueue::time() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {.busy = busy_, .processor = processor_, .starting = processor_};
}

bool CudaQueue::Watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (work_.empty()) return false;
  const Work work = work_.front();
  lock.unlock();
  // Nothing is waited for on a device that has failed.
  if (!args_.driver->Reached(work.end) && args_.driver->status().ok()) return false;
  if (work.to != nullptr) std::memcpy(work.to, work.pinned, work.pinned_bytes);
  CudaDriver::Event free = work.end;
  if (work.seconds != nullptr) {
    *work.seconds = stamp_seconds_ + args_.driver->SecondsBetween(stamp_, work.end);
    stamp_seconds_ = *work.seconds;
    free = std::exchange(stamp_, work.end);
  }
  lock.lock();
  if (work.begin != nullptr) {
    busy_ += args_.driver->SecondsBetween(work.begin, work.end);
    events_.push_back(work.begin);
  }
  if (free != args_.origin) events_.push_back(free);
  if (work.pinned != nullptr) ring_.GiveBack(work.pinned_bytes);
  work_.pop_front();
  lock.unlock();
  done_.store(work.ticket, std::memory_order_release);
  finished_.Ring();
  return true;
}

}  // namespace pp
