#include "runtime/device/cuda/cuda_device.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "runtime/comm/clock.h"
#include "runtime/comm/transport.h"
#include "runtime/device/cuda/cuda_kernels.h"
#include "runtime/device/cuda/cuda_queue.h"
#include "runtime/device/cuda/nccl_transport.h"
#include "runtime/device/cuda/staged_transport.h"
#include "schema/model/workspace.h"

namespace pp {
namespace {

// The watcher naps while work is under way: an eighth of the time since work was last submitted or
// done, at least CudaExperiments::poll and at most this. What takes long is noticed a little later,
// and a processor is not kept busy: a nap costs some microseconds of its time, in a virtual machine
// 20.
constexpr std::chrono::microseconds kLongestNap{50};

// Calls of kernels, some of which are three launches.
constexpr int kMostAhead = 256;

class CudaDevice : public Device {
 public:
  CudaDevice(std::unique_ptr<CudaDriver> driver, CudaDeviceArgs args)
      : driver_(std::move(driver)),
        nccl_(std::move(args.nccl)),
        bells_(args.bells),
        gemms_(std::move(args.gemms)),
        stochastic_rounding_(args.stochastic_rounding),
        experiments_(args.experiments),
        note_(std::move(args.note)) {}
  ~CudaDevice() override {
    if (!watcher_.joinable()) return;
    Finish();
    ended_.store(true);
    bell_.Ring();
    watcher_.join();
  }

  Status Allocate(int64_t bytes) override {
    if (gemms_ != nullptr) PP_RETURN_IF_ERROR(gemms_->CheckMachine(driver_->machine()));
    driver_->LoadKernels();
    const int64_t words = std::max<int64_t>(1, (bytes + 3) / 4);
    Result<std::byte*> arena = driver_->Allocate(words * 4);
    PP_RETURN_IF_ERROR(arena.status());
    Result<std::byte*> pinned = driver_->TakePinned(5 * CudaQueue::kPinnedBytes);
    PP_RETURN_IF_ERROR(pinned.status());
    arena_ = *arena;
    second_ = driver_->MakeStream(CudaDriver::Priority::kLow);
    const CudaDriver::Event origin = driver_->MakeEvent();
    driver_->Fill(arena_, kUntouchedWord, words, second_);
    driver_->Record(origin, second_);
    while (!driver_->Reached(origin) && driver_->status().ok()) sched_yield();
    PP_RETURN_IF_ERROR(driver_->status());
    queue_args_ = {.driver = driver_.get(),
                   .pinned = *pinned,
                   .origin = origin,
                   .origin_seconds = SteadySeconds(),
                   .watcher = &bell_};
    compute_ = std::make_unique<CudaQueue>(queue_args_);
    for (auto* queue : {&reduce_, &out_, &in_, &probe_}) {
      queue_args_.pinned += CudaQueue::kPinnedBytes;
      *queue = std::make_unique<CudaQueue>(queue_args_);
    }
    queue_args_.pinned = nullptr;
    bytes_ = bytes, words_ = words;
    watcher_ = std::thread([this] { Watch(); });
    return driver_->status();
  }

  std::byte* at(int64_t offset) const override { return arena_ + offset; }
  Queue& compute() override { return *compute_; }
  Queue& reduce() override { return *reduce_; }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs& args) override {
    return MakeCudaKernels(driver_.get(), compute_->stream(), *args.job, args.workspace,
                           {.gemms = gemms_.get(),
                            .fuses_gelu = experiments_.fuses_gelu,
                            .second = experiments_.weights_beside ? second_ : nullptr,
                            .most_ahead = nccl_ != nullptr ? kMostAhead : 0,
                            .dead = Beside(args.workspace, WorkspaceOf(*args.job).bytes),
                            .note = note_,
                            .stochastic_rounding = stochastic_rounding_});
  }
  int64_t bytes_outside() const override { return driver_->bytes() - words_ * 4; }

  Result<std::unique_ptr<Transport>> MakeTransport(const Links& links) override {
    if (!links.communicators.empty()) return MakeNcclTransport(links);
    std::unique_ptr<Transport> reach;
    if (!links.inner->CopyBy(in_.get()))
      reach = std::make_unique<StagedTransport>(StagedTransport::Args{
          .inner = links.inner, .driver = driver_.get(), .out = out_.get(), .in = in_.get()});
    return reach;
  }

  void Finish() override {
    if (!watcher_.joinable()) return;  // Allocate has failed
    for (const auto* queue : {&compute_, &reduce_, &out_, &in_, &probe_}) (*queue)->Finish();
  }
  Status status() const override { return driver_->status(); }

  // From the end, piece by piece, to where it was before. One caller at a time.
  int64_t HighWater() const override {
    std::vector<uint32_t> words(CudaQueue::kPieceBytes / 4);
    for (int64_t end = words_; end > high_;) {
      const int64_t begin = std::max(high_, end - static_cast<int64_t>(words.size()));
      const Ticket ticket = probe_->CopyOut(words.data(), arena_ + begin * 4, (end - begin) * 4);
      probe_->WaitFor(ticket);
      while (end > begin && words[end - 1 - begin] == kUntouchedWord) --end;
      if (end > begin) high_ = end;
    }
    return std::min(high_ * 4, bytes_);
  }

 private:
  // The larger part of the arena, before a region or after it: any operand of a product has room
  // there, as it lies in one of the two.
  std::span<std::byte> Beside(std::byte* region, int64_t bytes) const {
    const std::span<std::byte> before(arena_, region), after(region + bytes, arena_ + bytes_);
    return before.size() > after.size() ? before : after;
  }

  Result<std::unique_ptr<Transport>> MakeNcclTransport(const Links& links) {
    PP_CHECK(nccl_ != nullptr);
    NcclTransport::Args nccl{.inner = links.inner,
                             .driver = driver_.get(),
                             .nccl = nccl_,
                             .communicators = links.communicators};
    if (const int64_t free = driver_->FreeBytes(); free < links.library_bytes)
      return Status::Invalid(fmt::format(
          "NCCL takes some {} bytes of the GPU's memory beside the plan's, and {} are free (a plan "
          "with less memory, or with fewer ranks to talk to)",
          links.library_bytes, free));
    int64_t ports = 0;
    for (const RankCommunicator& one : links.communicators)
      ports += static_cast<int64_t>(one.ports.size());
    PP_CHECK(ports <= kSpareBytes);
    nccl.bytes = links.spare;
    // What other ranks wait for goes first.
    queue_args_.priority = CudaDriver::Priority::kHigh;
    std::lock_guard<std::mutex> lock(nccl_mutex_);
    for (size_t i = 0; i < links.communicators.size(); ++i) {
      nccl_queues_.push_back(std::make_unique<CudaQueue>(queue_args_));
      nccl.queues.push_back(nccl_queues_.back().get());
    }
    return std::unique_ptr<Transport>(std::make_unique<NcclTransport>(std::move(nccl)));
  }

  // What waits for other ranks does not count: it may never finish.
  bool Idle() const {
    return compute_->Idle() && reduce_->Idle() && out_->Idle() && in_->Idle() && probe_->Idle();
  }

  void Watch() {
    prctl(PR_SET_TIMERSLACK, 1000);  // naps end within a microsecond
    auto since = std::chrono::steady_clock::now();
    uint64_t known = 0;
    while (!ended_.load()) {
      const uint64_t seen = bell_.rings();
      bool moved = false;
      for (const auto* queue : {&compute_, &reduce_, &out_, &in_, &probe_})
        moved |= (*queue)->Watch();
      bool idle = Idle();
      {
        std::lock_guard<std::mutex> lock(nccl_mutex_);
        for (const auto& queue : nccl_queues_) {
          moved |= queue->Watch();
          idle &= queue->Idle();
        }
      }
      if (moved) {
        bells_.compute->Ring();
        bells_.communication->Ring();
      }
      const auto now = std::chrono::steady_clock::now();
      if (moved || seen != known) since = now;
      known = seen;
      if (moved) continue;
      if (idle) {
        bell_.Wait(seen);
      } else {
        std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(
            (now - since) / 8, experiments_.poll, std::max(experiments_.poll, kLongestNap)));
      }
    }
  }

  const std::unique_ptr<CudaDriver> driver_;
  const std::shared_ptr<Nccl> nccl_;  // null: none
  const DeviceBells bells_;
  const std::shared_ptr<const GemmTable> gemms_;
  const bool stochastic_rounding_;
  const CudaExperiments experiments_;
  const std::function<void(const std::string&)> note_;
  CudaDriver::Stream second_ = nullptr;  // fills the arena, then has products beside all else
  std::byte* arena_ = nullptr;
  int64_t bytes_ = 0, words_ = 0;  // of it, and of what was allocated for it
  std::unique_ptr<CudaQueue> compute_, reduce_;
  std::unique_ptr<CudaQueue> out_, in_;  // for messages
  std::unique_ptr<CudaQueue> probe_;
  CudaQueue::Args queue_args_;  // for a queue without pinned memory
  std::mutex nccl_mutex_;
  std::vector<std::unique_ptr<CudaQueue>> nccl_queues_;  // by communicator
  mutable int64_t high_ = 0;                             // words, so far
  Bell bell_;
  std::atomic<bool> ended_{false};
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Device> MakeCudaDevice(std::unique_ptr<CudaDriver> driver, CudaDeviceArgs args) {
  return std::make_unique<CudaDevice>(std::move(driver), std::move(args));
}

}  // namespace pp
