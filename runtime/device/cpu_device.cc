#include "runtime/device/cpu_device.h"

#include <cstring>
#include <optional>

#include "kernels/sum_parts.h"
#include "runtime/comm/clock.h"
#include "runtime/device/activations.h"
#include "runtime/device/arena.h"
#include "runtime/device/cpu_kernels.h"

namespace pp {
namespace {

class CpuQueue : public Queue {
 public:
  Ticket Submit(StageExecutor& executor, const StageCall& call) override {
    const double begin = SteadySeconds(), processor = ThreadSeconds();
    executor.Run(call);
    time_.busy += SteadySeconds() - begin;
    time_.processor += ThreadSeconds() - processor;
    return ++last_;
  }

  Ticket Sum(const SumArgs& args) override {
    ForActivations(args.dtype, [&]<typename N>() { kernels::cpu::SumParts(SumPartsOf<N>(args)); });
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
  void Follow(const Queue&, Ticket) override {}
  Ticket last() const override { return last_; }
  Ticket Mark() override { return last_; }
  QueueTime time() const override { return time_; }
  bool Done(Ticket) const override { return true; }

 private:
  Ticket last_ = 0;  // the owner's, as the time
  QueueTime time_;
};

class CpuDevice : public Device {
 public:
  Status Allocate(int64_t bytes) override {
    Result<Arena> arena = Arena::Allocate(bytes);
    PP_RETURN_IF_ERROR(arena.status());
    arena_.emplace(std::move(*arena));
    return {};
  }
  std::byte* at(int64_t offset) const override { return arena_->at(offset); }
  int64_t HighWater() const override { return arena_ ? arena_->HighWater() : 0; }
  Queue& compute() override { return compute_; }
  Queue& reduce() override { return reduce_; }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs& args) override {
    return MakeCpuKernels(*args.job, args.threads, args.workspace);
  }
  void Finish() override {}

 private:
  std::optional<Arena> arena_;
  CpuQueue compute_, reduce_;
};

}  // namespace

std::unique_ptr<Device> MakeCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace pp
