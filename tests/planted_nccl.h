// NCCL and CUDA as a broken runtime would use them, or as they break themselves: what each of these
// does is to be found (nccl_run_test.cc).
#pragma once

#include <atomic>
#include <climits>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/comm/clock.h"
#include "runtime/device/cuda/nccl.h"
#include "tests/fake_cuda.h"
#include "tests/forwarding_cuda.h"

namespace pp {

// Like NCCL, except for what a plant does.
class PlantedNccl : public Nccl {
 public:
  explicit PlantedNccl(std::unique_ptr<Nccl> inner) : inner_(std::move(inner)) {}
  Result<Id> MakeId() override { return inner_->MakeId(); }
  Result<Communicator> Create(const Id& id, int member, int members) override {
    return inner_->Create(id, member, members);
  }
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    return inner_->Enqueue(communicator, operations, stream);
  }
  Status Check(Communicator communicator) override { return inner_->Check(communicator); }
  void Abort(std::span<const Communicator> communicators) override { inner_->Abort(communicators); }

 protected:
  const std::unique_ptr<Nccl> inner_;
};

struct WrongMember : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id& id, int member, int members) override {
    return inner_->Create(id, (member + 1) % members, members);
  }
};

// Each rank creates communicators with its own id.
struct WrongId : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id&, int member, int members) override {
    return inner_->Create(*inner_->MakeId(), member, members);
  }
};

struct NeverMade : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id&, int, int) override { return Communicator(nullptr); }
  void Abort(std::span<const Communicator>) override {}
};

// One operation after the other, although they belong together.
struct NoGroups : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    for (const Operation& operation : operations)
      PP_RETURN_IF_ERROR(inner_->Enqueue(communicator, {&operation, 1}, stream));
    return {};
  }
};

struct Short : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    std::vector<Operation> shorter(operations.begin(), operations.end());
    for (Operation& operation : shorter) operation.bytes = (operation.bytes + 1) / 2;
    return inner_->Enqueue(communicator, shorter, stream);
  }
};

// From its kCalls-th call about its second communicator on something is wrong.
template <int kCalls>
struct Failing : PlantedNccl {
  using PlantedNccl::PlantedNccl;
  Result<Communicator> Create(const Id& id, int member, int members) override {
    const bool second = ++made_ == 2;
    if (second && ++calls_ >= kCalls) return Status::Failed("NCCL: remote process exited");
    auto made = inner_->Create(id, member, members);
    if (second && made.ok()) second_ = *made;
    return made;
  }
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    if (communicator == second_ && ++calls_ >= kCalls)
      return Status::Failed("NCCL: remote process exited");
    return inner_->Enqueue(communicator, operations, stream);
  }
  Communicator second_ = nullptr;
  int made_ = 0, calls_ = 0;
};

// The second communicator's messages never arrive, so that soon all wait. Then the answer about it
// is that something is wrong.
struct Silent : Failing<INT_MAX> {
  using Failing<INT_MAX>::Failing;
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    if (communicator != second_ || operations[0].bytes == 1)
      return inner_->Enqueue(communicator, operations, stream);
    fails_at_ = SteadySeconds() + 0.5;
    FakeWait(stream, [ended = ended_] { return ended->load(); });
    return {};
  }
  Status Check(Communicator communicator) override {
    if (communicator == second_ && SteadySeconds() > fails_at_)
      return Status::Failed("NCCL: remote process exited");
    return inner_->Check(communicator);
  }
  void Abort(std::span<const Communicator> communicators) override {
    ended_->store(true);
    inner_->Abort(communicators);
  }
  const std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
  double fails_at_ = std::numeric_limits<double>::infinity();
};

// Where one queue waits for another's event: it does not.
enum class Lost {
  kFork,     // the second stream, for the gradients that its products read
  kJoin,     // the compute stream, for these products
  kStart,    // a communicator's stream, for what it sends or where it receives
  kArrival,  // the compute stream, for what has arrived
  kNothing,
};

class ForgetfulCuda : public ForwardingCuda {
 public:
  ForgetfulCuda(std::unique_ptr<CudaDriver> inner, Lost lost)
      : ForwardingCuda(std::move(inner)), lost_(lost) {}
  Stream MakeStream(Priority priority) override {
    const Stream stream = inner_->MakeStream(priority);
    std::lock_guard<std::mutex> lock(mutex_);
    priority_of_[stream] = priority;
    return stream;
  }
  void Record(Event event, Stream stream) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      recorded_by_[event] = priority_of_[stream];
    }
    inner_->Record(event, stream);
  }
  void WaitFor(Stream stream, Event event) override {
    if (KindOf(stream, event) != lost_) inner_->WaitFor(stream, event);
  }
  // The second stream's products are slow, so that others are there before them.
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    if (priority_of_.at(stream) == Priority::kLow) FakeDelay(stream, 20e-3);
    inner_->Multiply(product, args, stream);
  }

 private:
  Lost KindOf(Stream stream, Event event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (priority_of_[stream] == Priority::kLow) return Lost::kFork;
    if (priority_of_[stream] == Priority::kHigh) return Lost::kStart;
    return recorded_by_[event] == Priority::kLow ? Lost::kJoin : Lost::kArrival;
  }

  const Lost lost_;
  std::mutex mutex_;
  std::map<Stream, Priority> priority_of_;
  std::map<Event, Priority> recorded_by_;
};

struct SlowCuda : ForwardingCuda {
  using ForwardingCuda::ForwardingCuda;
  void Multiply(int product, const kernels::MatmulArgs& args, Stream stream) override {
    FakeDelay(stream, 2e-3);
    inner_->Multiply(product, args, stream);
  }
};

// Counts the groups of a rank's communicators.
struct CountingNccl : PlantedNccl {
  CountingNccl(std::unique_ptr<Nccl> inner, std::vector<int64_t>* sizes)
      : PlantedNccl(std::move(inner)), sizes_(sizes) {}
  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    sizes_->push_back(static_cast<int64_t>(operations.size()));
    return inner_->Enqueue(communicator, operations, stream);
  }
  std::vector<int64_t>* const sizes_;
};

}  // namespace pp
