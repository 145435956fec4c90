#include "runtime/device/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <optional>

#include "kernels/elementwise.h"
#include "runtime/comm/transport.h"
#include "runtime/device/arena.h"

namespace pp {
namespace {

// Sums go piece by piece, so that a piece stays in the first cache.
constexpr int64_t kSumPiece = 2048;

// Processor time of the calling thread.
double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

class CpuQueue : public Queue {
 public:
  Ticket Submit(StageExecutor& executor, const StageCall& call) override {
    const double begin = SteadySeconds(), processor = ThreadSeconds();
    executor.Run(call, nullptr);
    time_.busy += SteadySeconds() - begin;
    time_.processor += ThreadSeconds() - processor;
    return ++last_;
  }

  Ticket Sum(const SumArgs& args) override {
    float sum[kSumPiece];
    for (int64_t begin = 0; begin < args.n; begin += kSumPiece) {
      const int64_t n = std::min(kSumPiece, args.n - begin);
      std::memcpy(sum, args.parts[0] + begin, n * sizeof(float));
      for (const float* part : args.parts.subspan(1))
        kernels::cpu::Add({.n = n, .x = part + begin, .out = sum});
      std::memcpy(args.out + begin, sum, n * sizeof(float));
      if (args.also != nullptr) std::memcpy(args.also + begin, sum, n * sizeof(float));
    }
    return ++last_;
  }

  Ticket CopyIn(void* to, const void* from, int64_t bytes) override {
    std::memcpy(to, from, bytes);
    return ++last_;
  }
  Ticket CopyOut(void* to, const void* from, int64_t bytes) override {
    return CopyIn(to, from, bytes);
  }
  Ticket Drop(void*, int64_t) override { return last_; }
  Ticket Stamp(double* seconds) override {
    *seconds = SteadySeconds();
    return last_;
  }
  Ticket last() const override { return last_; }
  QueueTime time() const override { return time_; }
  bool Done(Ticket) const override { return true; }

 private:
  Ticket last_ = 0;  // the owner's, as the time
  QueueTime time_;
};

class CpuDevice : public Device {
 public:
  Status Take(int64_t bytes) override {
    Result<Arena> arena = Arena::Take(bytes);
    PP_RETURN_IF_ERROR(arena.status());
    arena_.emplace(std::move(*arena));
    return {};
  }
  std::byte* at(int64_t offset) const override { return arena_->at(offset); }
  int64_t HighWater() const override { return arena_ ? arena_->HighWater() : 0; }
  Queue& compute() override { return compute_; }
  Queue& reduce() override { return reduce_; }
  void Finish() override {}

 private:
  std::optional<Arena> arena_;
  CpuQueue compute_, reduce_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace pp
