#include "tests/late_device.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "runtime/comm/clock.h"
#include "runtime/device/cpu_device.h"

namespace pp {
namespace {

// A quiet NaN as float and as double; no token.
constexpr int kPoison = 0xFF;

}  // namespace

// Its threads do the work of all queues, that of one queue in order.
class LateScheduler {
 public:
  struct Lane;
  struct Work {
    std::function<void()> run;
    const Lane* after = nullptr;  // begins after a ticket of another lane; null: none
    Ticket ticket = 0;
  };
  struct Lane {
    std::deque<Work> work;
    Ticket submitted = 0;
    std::atomic<Ticket> done{0};
    DeviceBells bells;
    bool busy = false;
  };

  LateScheduler(unsigned seed, int threads) : random_(seed) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Main(); });
  }
  ~LateScheduler() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::shared_ptr<Lane> AddLane(const DeviceBells& bells) {
    std::lock_guard<std::mutex> lock(mutex_);
    lanes_.push_back(std::make_shared<Lane>());
    lanes_.back()->bells = bells;
    return lanes_.back();
  }
  // Removes a device. REQUIRES: Drain.
  void Remove(const std::shared_ptr<Lane>& lane) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase(lanes_, lane);
  }
  // Until the lane's work is done and its bells have rung.
  void Drain(const Lane& lane) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return lane.work.empty() && !lane.busy; });
  }

  Ticket Submit(Lane& lane, Work work) {
    std::lock_guard<std::mutex> lock(mutex_);
    lane.work.push_back(std::move(work));
    changed_.notify_all();
    return ++lane.submitted;
  }

 private:
  void Main() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      std::vector<std::shared_ptr<Lane>> ready;
      for (auto& lane : lanes_)
        if (!lane->busy && MayBegin(*lane)) ready.push_back(lane);
      if (ready.empty()) {
        if (ended_) return;
        changed_.wait(lock);
        continue;
      }
      // Now and then the submitting threads get further ahead.
      if (random_() % 4 == 0) {
        const std::chrono::microseconds nap(random_() % 60);
        lock.unlock();
        std::this_thread::sleep_for(nap);
        lock.lock();
        continue;
      }
      const std::shared_ptr<Lane> lane = ready[random_() % ready.size()];
      const std::function<void()> work = std::move(lane->work.front().run);
      lane->work.pop_front();
      lane->busy = true;
      lock.unlock();
      work();
      lane->done.fetch_add(1, std::memory_order_release);
      lane->bells.compute->Ring();
      lane->bells.communication->Ring();
      lock.lock();
      lane->busy = false;
      changed_.notify_all();
    }
  }

  static bool MayBegin(const Lane& lane) {
    if (lane.work.empty()) return false;
    const Work& next = lane.work.front();
    return next.after == nullptr || next.after->done.load() >= next.ticket;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Lane>> lanes_;
  bool ended_ = false;
  std::mt19937 random_;
  std::vector<std::thread> threads_;
};

namespace {

// Does on another queue, later, what is submitted here.
class LateQueue : public Queue {
 public:
  LateQueue(LateScheduler* scheduler, Queue* inner, const DeviceBells& bells)
      : scheduler_(scheduler), inner_(inner), lane_(scheduler->AddLane(bells)) {}
  ~LateQueue() override { scheduler_->Remove(lane_); }

  Ticket Submit(StageExecutor& executor, const StageCall& call) override {
    return Later([this, &executor, call] { inner_->Submit(executor, call); });
  }
  Ticket Sum(const SumArgs& args) override {
    return Later([this, args, parts = std::vector(args.parts.begin(), args.parts.end())] {
      SumArgs own = args;
      own.parts = parts;
      inner_->Sum(own);
    });
  }
  Ticket CopyIn(void* to, const void* from, int64_t bytes) override {
    const auto* begin = static_cast<const char*>(from);
    return Later([to, copy = std::vector<char>(begin, begin + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    });
  }
  Ticket CopyOut(void* to, const void* from, int64_t bytes) override {
    return Later([=] { std::memcpy(to, from, bytes); });
  }
  Ticket Drop(void* at, int64_t bytes) override {
    return Later([=] { std::memset(at, kPoison, bytes); });
  }
  Ticket Stamp(double* seconds) override {
    return Later([=] { *seconds = SteadySeconds(); });
  }
  void Follow(const Queue& other, Ticket ticket) override {
    const auto& late = static_cast<const LateQueue&>(other);
    last_ = scheduler_->Submit(*lane_, {[] {}, late.lane_.get(), ticket});
  }
  Ticket last() const override { return last_; }
  Ticket Mark() override { return 0; }  // a call's work is done as it is put in
  QueueTime time() const override { return inner_->time(); }
  void Finish() { scheduler_->Drain(*lane_); }
  bool Done(Ticket ticket) const override {
    return lane_->done.load(std::memory_order_acquire) >= ticket;
  }

 private:
  Ticket Later(std::function<void()> work) {
    return last_ = scheduler_->Submit(*lane_, {std::move(work)});
  }

  LateScheduler* const scheduler_;
  Queue* const inner_;
  const std::shared_ptr<LateScheduler::Lane> lane_;
  Ticket last_ = 0;
};

class LateDevice : public Device {
 public:
  LateDevice(LateScheduler* scheduler, const DeviceBells& bells)
      : inner_(MakeCpuDevice()),
        compute_(scheduler, &inner_->compute(), bells),
        reduce_(scheduler, &inner_->reduce(), bells) {}

  Status Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  std::byte* at(int64_t offset) const override { return inner_->at(offset); }
  int64_t HighWater() const override { return inner_->HighWater(); }
  Queue& compute() override { return compute_; }
  Queue& reduce() override { return reduce_; }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs& args) override {
    return inner_->MakeKernels(args);
  }
  void Finish() override {
    compute_.Finish();
    reduce_.Finish();
  }

 private:
  const std::unique_ptr<Device> inner_;
  LateQueue compute_, reduce_;
};

// Starts transfers some tests after they were started.
class LateTransport : public Transport {
 public:
  LateTransport(Transport* inner, unsigned seed)
      : Transport(inner->rank(), inner->ranks()), inner_(inner), random_(seed + inner->rank()) {
    waiting_.resize(port_count());
  }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    if (port.channel == Channel::kControl) return inner_->Start(port, data, bytes);
    if (port.way == Way::kRecv && bytes > 0) std::memset(data, kPoison, bytes);
    waiting_[IndexOf(port)] = {data, bytes, static_cast<int>(random_() % 6)};
    return {};
  }
  Status Test(const Port& port, bool* over) override {
    Waiting& waiting = waiting_[IndexOf(port)];
    if (port.channel == Channel::kControl || waiting.tests < 0) return inner_->Test(port, over);
    *over = false;
    return waiting.tests-- > 0 ? Status() : inner_->Start(port, waiting.data, waiting.bytes);
  }
  bool polls() const override { return true; }
  void Settle(double seconds) override { inner_->Settle(seconds); }

 private:
  struct Waiting {
    void* data = nullptr;
    int64_t bytes = 0;
    int tests = -1;  // before it begins; -1: it has begun
  };
  Transport* const inner_;
  std::mt19937 random_;
  std::vector<Waiting> waiting_;
};

}  // namespace

LateDevices::LateDevices(unsigned seed, int threads)
    : seed_(seed), scheduler_(std::make_unique<LateScheduler>(seed, threads)) {}
LateDevices::~LateDevices() = default;

void LateDevices::AddTo(TrainOptions* options) const {
  options->make_device = [this](int, const DeviceBells& bells) {
    return std::make_unique<LateDevice>(scheduler_.get(), bells);
  };
  options->wrap_transport = [this](Transport* inner) {
    return std::make_unique<LateTransport>(inner, seed_);
  };
}

}  // namespace pp
