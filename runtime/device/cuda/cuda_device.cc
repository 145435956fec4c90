#include "runtime/device/cuda/cuda_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/comm/transport.h"
#include "runtime/device/cuda/cuda_kernels.h"
#include "runtime/device/cuda/cuda_queue.h"
#include "runtime/device/cuda/staged_transport.h"

namespace pp {
namespace {

// A number that no computation gives, as in arena.cc: what differs was written.
constexpr uint32_t kUntouched = 0xFFA7A9C1;
constexpr std::chrono::microseconds kNap{5};

class CudaDevice : public Device {
 public:
  CudaDevice(std::unique_ptr<CudaDriver> driver, const DeviceBells& bells)
      : driver_(std::move(driver)), bells_(bells) {}
  ~CudaDevice() override {
    if (!watcher_.joinable()) return;
    Finish();
    ended_.store(true);
    bell_.Ring();
    watcher_.join();
  }

  Status Take(int64_t bytes) override {
    Result<std::byte*> arena = driver_->Take(std::max<int64_t>(bytes, 4));
    PP_RETURN_IF_ERROR(arena.status());
    Result<std::byte*> pinned = driver_->TakePinned(5 * CudaQueue::kPinnedBytes);
    PP_RETURN_IF_ERROR(pinned.status());
    arena_ = *arena;
    const CudaDriver::Stream stream = driver_->MakeStream();
    const CudaDriver::Event origin = driver_->MakeEvent();
    driver_->Fill(arena_, kUntouched, bytes / 4, stream);
    driver_->Record(origin, stream);
    while (!driver_->Reached(origin) && driver_->status().ok()) sched_yield();
    PP_RETURN_IF_ERROR(driver_->status());
    CudaQueue::Args args{.driver = driver_.get(),
                         .pinned = *pinned,
                         .origin = origin,
                         .origin_seconds = SteadySeconds(),
                         .watcher = &bell_};
    compute_ = std::make_unique<CudaQueue>(args);
    for (auto* queue : {&reduce_, &out_, &in_, &probe_}) {
      args.pinned += CudaQueue::kPinnedBytes;
      *queue = std::make_unique<CudaQueue>(args);
    }
    bytes_ = bytes;
    watcher_ = std::thread([this] { Watch(); });
    return driver_->status();
  }

  std::byte* at(int64_t offset) const override { return arena_ + offset; }
  Queue& compute() override { return *compute_; }
  Queue& reduce() override { return *reduce_; }
  std::unique_ptr<Kernels> MakeKernels(const Job& job, int) override {
    return MakeCudaKernels(driver_.get(), compute_->stream(), job);
  }

  std::unique_ptr<Transport> Reach(Transport* inner) override {
    return std::make_unique<StagedTransport>(StagedTransport::Args{
        .inner = inner, .driver = driver_.get(), .out = out_.get(), .in = in_.get()});
  }

  void Finish() override {
    if (!watcher_.joinable()) return;  // Take has failed
    while (!Idle()) sched_yield();
  }
  Status status() const override { return driver_->status(); }

  // From the end, a piece at a time, to where it was before. One caller at a time.
  int64_t HighWater() const override {
    std::vector<uint32_t> words(CudaQueue::kPieceBytes / 4);
    for (int64_t end = bytes_ / 4; end > high_;) {
      const int64_t begin = std::max(high_, end - static_cast<int64_t>(words.size()));
      const Ticket ticket = probe_->CopyOut(words.data(), arena_ + begin * 4, (end - begin) * 4);
      while (!probe_->Done(ticket)) sched_yield();
      while (end > begin && words[end - 1 - begin] == kUntouched) --end;
      if (end > begin) high_ = end;
    }
    return high_ * 4;
  }

 private:
  bool Idle() const {
    return compute_->Idle() && reduce_->Idle() && out_->Idle() && in_->Idle() && probe_->Idle();
  }

  void Watch() {
    prctl(PR_SET_TIMERSLACK, 1000);  // naps end within a microsecond
    while (!ended_.load()) {
      const uint64_t seen = bell_.rings();
      const bool moved =
          compute_->Watch() | reduce_->Watch() | out_->Watch() | in_->Watch() | probe_->Watch();
      if (moved) {
        bells_.compute->Ring();
        bells_.communication->Ring();
      } else if (!Idle()) {
        std::this_thread::sleep_for(kNap);
      } else {
        bell_.Wait(seen);
      }
    }
  }

  const std::unique_ptr<CudaDriver> driver_;
  const DeviceBells bells_;
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0;
  std::unique_ptr<CudaQueue> compute_, reduce_;
  std::unique_ptr<CudaQueue> out_, in_;  // of messages
  std::unique_ptr<CudaQueue> probe_;
  mutable int64_t high_ = 0;  // words, so far
  Bell bell_;
  std::atomic<bool> ended_{false};
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(std::unique_ptr<CudaDriver> driver,
                                       const DeviceBells& bells) {
  return std::make_unique<CudaDevice>(std::move(driver), bells);
}

}  // namespace pp
