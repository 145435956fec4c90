#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/block/block.h"
#include "kernels/block/fiber.h"

namespace pp::kernels::cuda::emulation {
namespace {

// A thread of a block: not begun, running, waiting, or over.
enum class State : uint8_t { kFresh, kRuns, kAtWarp, kAtBlock, kEnded };

struct Lane {
  Where where;
  int at = 0;              // among the block's, in the order in which they run
  Fiber* fiber = nullptr;  // from when it has begun
};

struct WarpSlots {
  alignas(64) std::byte bytes[2][kWarp * kMostBytes];  // for every second synchronisation
};

// Runs blocks, one after the other. The fibers are reused.
class Runner {
 public:
  void Seed(uint32_t seed) { random_.seed(seed); }

  void Run(const Grid& grid, const std::function<void()>& thread) {
    if (grid.threads % kWarp != 0 || grid.threads < kWarp || grid.threads > 1024)
      throw std::runtime_error("a block of " + std::to_string(grid.threads) + " threads");
    if (grid.shared > most_shared)
      throw std::runtime_error("a block with " + std::to_string(grid.shared) +
                               " bytes of shared memory");
    thread_ = &thread;
    Make(grid);
    blocks_.resize(grid.x * grid.y * grid.z);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::shuffle(blocks_.begin(), blocks_.end(), random_);
    fault_ = nullptr;
    for (int64_t block : blocks_) RunBlock(grid, block);
    if (fault_ != nullptr) throw std::runtime_error(fault_);
  }

  void Fail(const char* what) { fault_ = what; }

  void MeetBlock() { LeaveAs(State::kAtBlock); }

  void SyncLanes(Sync what) {
    if (lane_->at % kWarp == 0) sync_ = what;
    arrived_ += what == sync_ ? 1 : 0;
    LeaveAs(State::kAtWarp);
  }

 private:
  // Room for the grid's blocks, and what is the same in all of them.
  void Make(const Grid& grid) {
    while (static_cast<int>(fibers_.size()) < grid.threads)
      fibers_.push_back(std::make_unique<Fiber>(static_cast<int>(fibers_.size()), body_));
    lanes_.resize(grid.threads);
    states_.resize(grid.threads);
    warps_.resize(grid.threads / kWarp);
    order_.resize(warps_.size());
    shared_.resize((grid.shared + kBehind + 1024) / sizeof(uint64_t) + 1);
    const auto shared = (reinterpret_cast<uintptr_t>(shared_.data()) + 1023) / 1024 * 1024;
    for (int i = 0; i < grid.threads; ++i) {
      Where& where = lanes_[i].where;
      lanes_[i].at = i;
      where.threads = grid.threads;
      where.shared = reinterpret_cast<std::byte*>(shared);
      for (int j = 0; j < 2; ++j) where.slots[j] = warps_[i / kWarp].bytes[j];
      const int64_t blocks[] = {grid.x, grid.y, grid.z};
      std::copy_n(blocks, 3, where.blocks);
    }
  }

  void RunBlock(const Grid& grid, int64_t block) {
    std::fill(shared_.begin(), shared_.end(), ~uint64_t{0});
    const int64_t at[] = {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y};
    const int backwards = random_() % 2 == 0 ? 0 : kWarp - 1;
    for (Lane& lane : lanes_) {
      std::copy_n(at, 3, lane.where.block);
      lane.where.thread = lane.at ^ backwards;
      lane.where.meetings = 0;
      lane.where.copies.clear();
      lane.where.products.clear();
      lane.where.shows_copies = false;
    }
    std::fill(states_.begin(), states_.end(), State::kFresh);
    std::iota(order_.begin(), order_.end(), 0);
    for (bool goes_on = true; goes_on;) {
      std::shuffle(order_.begin(), order_.end(), random_);
      for (int warp : order_) RunWarp(warp);
      goes_on = PassBarrier();
    }
    const std::byte* behind = lanes_.front().where.shared + grid.shared;
    const auto changed = [](std::byte x) { return x != std::byte{0xff}; };
    if (std::any_of(behind, behind + kBehind, changed))
      Fail("a block writes behind its shared memory");
  }

  // Until all lanes have reached a barrier of the block, or have ended.
  void RunWarp(int warp) {
    arrived_ = 0;
    for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i)
      if (states_[i] <= State::kRuns) FiberOf(i)->Enter();
    const auto first = states_.begin() + warp * kWarp;
    if (std::find(first, first + kWarp, State::kAtWarp) != first + kWarp)
      throw std::runtime_error("lanes of a warp are at different instructions");
  }

  // Makes it the running one.
  Fiber* FiberOf(int thread) {
    lane_ = &lanes_[thread];
    here = &lane_->where;
    if (states_[thread] == State::kFresh) {
      lane_->fiber = fibers_[thread].get();
      lane_->fiber->Begin();
      states_[thread] = State::kRuns;
    }
    return lane_->fiber;
  }

  // Continues with the lane that is next in the warp, also after a synchronisation of all of them,
  // or else in RunWarp.
  void LeaveAs(State state) {
    Fiber* fiber = lane_->fiber;
    const int thread = lane_->at;
    states_[thread] = state;
    int next = thread + 1;
    if (next % kWarp == 0 && state == State::kAtWarp && arrived_ == kWarp) {
      next -= kWarp;
      arrived_ = 0;
      std::fill_n(states_.begin() + next, kWarp, State::kRuns);
    }
    if ((next % kWarp == 0 && next > thread) || states_[next] > State::kRuns) return fiber->Leave();
    fiber->LeaveTo(*FiberOf(next));
  }

  // What fibers run: a thread, and on the same stack those that begin when it has ended.
  void RunThreads() {
    for (Fiber* fiber = lane_->fiber;;) {
      (*thread_)();
      const int thread = lane_->at, next = thread + 1;
      if (next % kWarp == 0 || states_[next] != State::kFresh) return LeaveAs(State::kEnded);
      states_[thread] = State::kEnded;
      states_[next] = State::kRuns;
      lane_ = &lanes_[next];
      lane_->fiber = fiber;
      here = &lane_->where;
    }
  }

  // Whether there is anything to continue with.
  bool PassBarrier() {
    const auto ended = std::count(states_.begin(), states_.end(), State::kEnded);
    if (ended != 0 && ended != std::ssize(states_))
      throw std::runtime_error("a thread ends where others wait for it at a barrier");
    std::fill(states_.begin(), states_.end(), State::kRuns);
    return ended == 0;
  }

  static constexpr int kBehind = 256;  // bytes behind the shared memory that must not change

  const std::function<void()> body_ = [this] { RunThreads(); };
  const std::function<void()>* thread_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Lane> lanes_;
  std::vector<State> states_;  // of the lanes
  std::vector<WarpSlots> warps_;
  std::vector<uint64_t> shared_;
  std::vector<int64_t> blocks_;  // in the order in which they run
  std::vector<int> order_;       // of warps
  Lane* lane_ = nullptr;         // the running one
  Sync sync_ = Sync::kWarp;      // where the first lane of its warp is
  int arrived_ = 0;              // lanes of the warp that are there
  const char* fault_ = nullptr;
  std::mt19937 random_;
};

Runner& OfThisThread() {
  thread_local Runner runner;
  return runner;
}

}  // namespace

constinit thread_local const Where* here = nullptr;

void SetSeed(uint32_t seed) { OfThisThread().Seed(seed); }
void Fail(const char* what) { OfThisThread().Fail(what); }
void MeetBlock() { OfThisThread().MeetBlock(); }
void SyncLanes(Sync what) { OfThisThread().SyncLanes(what); }
void RunGrid(const Grid& grid, const std::function<void()>& thread) {
  OfThisThread().Run(grid, thread);
}

}  // namespace pp::kernels::cuda::emulation
