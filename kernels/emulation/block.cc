#include "kernels/block.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/emulation/fiber.h"

namespace pp::kernels::cuda::emulation {
namespace {

struct Lane {
  Fiber fiber;
  Where where;
  enum class State : uint8_t { kRuns, kAtWarp, kAtBlock } state = State::kRuns;
  Meeting meeting = Meeting::kWarp;
  int meetings = 0;  // of the warp, so far
};

struct WarpSlots {
  alignas(16) std::byte bytes[2][kWarp * kMostBytes];  // for every second meeting
};

// Runs blocks, one after the other. The fibers are reused.
class Runner {
 public:
  void Seed(uint32_t seed) { random_.seed(seed); }

  void Run(const Grid& grid, const std::function<void()>& thread) {
    if (grid.threads % kWarp != 0 || grid.threads < kWarp || grid.threads > 1024)
      throw std::runtime_error("a block of " + std::to_string(grid.threads) + " threads");
    while (static_cast<int>(lanes_.size()) < grid.threads)
      lanes_.push_back(std::make_unique<Lane>());
    warps_.resize(grid.threads / kWarp);
    shared_.resize(grid.shared / sizeof(uint64_t) + 32);
    std::vector<int64_t> blocks(grid.x * grid.y * grid.z);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (int64_t block : blocks) RunBlock(grid, block, thread);
  }

  void MeetBlock() {
    lane_->state = Lane::State::kAtBlock;
    lane_->fiber.Leave();
  }

  const std::byte* MeetWarp(Meeting what, const void* mine, size_t bytes) {
    Lane& lane = *lane_;
    std::byte* slots = warps_[lane.where.thread / kWarp].bytes[lane.meetings++ % 2];
    if (bytes > 0) std::memcpy(slots + lane.where.thread % kWarp * kMostBytes, mine, bytes);
    lane.meeting = what;
    lane.state = Lane::State::kAtWarp;
    LeaveToNextLane(lane);
    return slots;
  }

 private:
  void RunBlock(const Grid& grid, int64_t block, const std::function<void()>& thread) {
    std::fill(shared_.begin(), shared_.end(), ~uint64_t{0});
    auto* shared = reinterpret_cast<std::byte*>(
        (reinterpret_cast<uintptr_t>(shared_.data()) + 127) / 128 * 128);
    for (int i = 0; i < grid.threads; ++i) {
      Lane& lane = *lanes_[i];
      lane.where = {i,
                    grid.threads,
                    {block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y},
                    {grid.x, grid.y, grid.z},
                    shared};
      lane.state = Lane::State::kRuns;
      lane.meetings = 0;
      lane.fiber.Begin(&thread);
    }
    std::vector<int> order(warps_.size());
    std::iota(order.begin(), order.end(), 0);
    for (bool goes_on = true; goes_on;) {
      std::shuffle(order.begin(), order.end(), random_);
      for (int warp : order) RunWarp(warp);
      goes_on = PassBarrier(grid.threads);
    }
  }

  // What RunWarp would do next, without switching there and back.
  void LeaveToNextLane(Lane& lane) {
    if ((lane.where.thread + 1) % kWarp == 0) return lane.fiber.Leave();
    Lane& next = *lanes_[lane.where.thread + 1];
    if (next.state != Lane::State::kRuns || next.fiber.ended()) return lane.fiber.Leave();
    lane_ = &next;
    here = &next.where;
    lane.fiber.LeaveTo(next.fiber);
  }

  // Until all lanes have reached a barrier of the block, or have ended.
  void RunWarp(int warp) {
    for (bool goes_on = true; goes_on;) {
      int at_warp = 0;
      for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i) {
        lane_ = lanes_[i].get();
        here = &lane_->where;
        if (lane_->state == Lane::State::kRuns && !lane_->fiber.ended()) lane_->fiber.Enter();
        if (!lane_->fiber.ended() && lane_->state == Lane::State::kAtWarp) ++at_warp;
      }
      goes_on = at_warp > 0;
      if (!goes_on) return;
      for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i) {
        Lane& lane = *lanes_[i];
        if (at_warp < kWarp || lane.meeting != lanes_[warp * kWarp]->meeting)
          throw std::runtime_error("lanes of a warp are at different instructions");
        lane.state = Lane::State::kRuns;
      }
    }
  }

  // Whether there is anything to continue with.
  bool PassBarrier(int threads) {
    int ended = 0;
    for (int i = 0; i < threads; ++i) {
      ended += lanes_[i]->fiber.ended() ? 1 : 0;
      lanes_[i]->state = Lane::State::kRuns;
    }
    if (ended != 0 && ended != threads)
      throw std::runtime_error("a thread ends where others wait for it at a barrier");
    return ended == 0;
  }

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<WarpSlots> warps_;
  std::vector<uint64_t> shared_;
  Lane* lane_ = nullptr;  // the running one
  std::mt19937 random_;
};

Runner& OfThisThread() {
  thread_local Runner runner;
  return runner;
}

}  // namespace

constinit thread_local const Where* here = nullptr;

void SetSeed(uint32_t seed) { OfThisThread().Seed(seed); }
void MeetBlock() { OfThisThread().MeetBlock(); }
const std::byte* MeetWarp(Meeting what, const void* mine, size_t bytes) {
  return OfThisThread().MeetWarp(what, mine, bytes);
}
void RunGrid(const Grid& grid, const std::function<void()>& thread) {
  OfThisThread().Run(grid, thread);
}

}  // namespace pp::kernels::cuda::emulation
