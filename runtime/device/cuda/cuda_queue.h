// A queue of the CUDA device: a stream, and what is to be done when it has reached an event.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <vector>

#include "runtime/device/cuda/driver.h"
#include "runtime/device/cuda/pinned_ring.h"
#include "runtime/device/device.h"

namespace pp {

class CudaQueue : public Queue, public Copier {
 public:
  // `origin`: an event that is reached, at `origin_seconds` of the host's steady clock. `watcher`
  // is rung when there is something to watch.
  struct Args {
    CudaDriver* driver = nullptr;
    CudaDriver::Priority priority = CudaDriver::Priority::kNormal;
    std::byte* pinned = nullptr;  // kPinnedBytes
    CudaDriver::Event origin = nullptr;
    double origin_seconds = 0;
    Bell* watcher = nullptr;
  };
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of a copy
  static constexpr int64_t kPinnedBytes = 4 * kPieceBytes;

  explicit CudaQueue(const Args& args);

  Ticket Submit(StageExecutor& executor, const StageCall& call) override;
  Ticket Sum(const SumArgs& args) override;
  Ticket CopyIn(void* to, const void* from, int64_t bytes) override;
  Ticket CopyOut(void* to, const void* from, int64_t bytes) override;
  // Copies between memories that the driver can access; both belong to the copy until the ticket is
  // done.
  Ticket Copy(void* to, const void* from, int64_t bytes) override;
  Ticket Drop(void*, int64_t) override { return last(); }
  Ticket Stamp(double* seconds) override;
  // REQUIRES: `other` is a CudaQueue.
  void Follow(const Queue& other, Ticket ticket) override;
  Ticket last() const override { return last_; }
  Ticket Mark() override { return Put({}); }
  void WaitFor(Ticket ticket) const override {
    finished_.WaitUntil([&] { return Done(ticket); });
  }
  QueueTime time() const override;
  bool Done(Ticket ticket) const override {
    return done_.load(std::memory_order_acquire) >= ticket;
  }

  CudaDriver::Stream stream() const { return stream_; }

  // The watcher: finishes what the stream has completed. Returns whether there was anything.
  bool Watch();
  // The watcher: whether nothing is under way.
  bool Idle() const { return done_.load() == submitted_.load(); }
  // The owner must have stopped submitting.
  void Finish() const {
    finished_.WaitUntil([&] { return Idle(); });
  }

 private:
  // What the watcher does when an event is reached.
  struct Work {
    Ticket ticket = 0;
    CudaDriver::Event begin = nullptr, end = nullptr;  // begin: null if no time is taken
    void* to = nullptr;                                // of a copy to the host, from `pinned`
    std::byte* pinned = nullptr;
    int64_t pinned_bytes = 0;
    double* seconds = nullptr;  // of a stamp
  };
  Ticket Put(Work work);
  CudaDriver::Event TakeEvent();
  std::byte* TakePinned(int64_t bytes);

  const Args args_;
  const CudaDriver::Stream stream_;
  Ticket last_ = 0;  // the owner's
  double processor_ = 0;
  std::atomic<Ticket> submitted_{0}, done_{0};
  mutable Bell finished_;     // the watcher rings when work is done, and its pinned memory free
  mutable std::mutex mutex_;  // of the following fields
  std::deque<Work> work_;
  std::vector<CudaDriver::Event> events_;  // free ones
  PinnedRing ring_;
  double busy_ = 0;
  // The watcher's: of the last stamp. From there to the next one CUDA's milliseconds are exact to
  // much less than a microsecond; hours after the origin they would not be, as they are floats.
  CudaDriver::Event stamp_ = nullptr;
  double stamp_seconds_ = 0;
};

}  // namespace pp
