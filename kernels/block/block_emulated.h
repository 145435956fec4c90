// block.h on a CPU: each thread of a block is a fiber, blocks run one after the other.
//
// A warp runs, lane by lane, until all of its lanes are at a barrier of the block or have ended,
// then another one, in an order given by the seed, as is whether the first or the last lane begins:
// if one warp, or lane, writes to shared memory and another reads it without a barrier between
// them, some order reads it too early, which is found because shared memory begins as NaNs. Lanes
// that come to a shuffle exchange their values there. A thread that ends before a barrier, lanes
// that come to different instructions, more shared memory than a block can have, or a write behind
// it, make Launch throw std::runtime_error.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "kernels/launchable.h"

#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__

namespace pp::kernels::cuda {
namespace emulation {

// For this thread's next blocks: determines the order in which they, and their warps, run.
void SetSeed(uint32_t seed);

// Where launches of a stream go. A null one runs them immediately.
class StreamOf {
 public:
  virtual ~StreamOf() = default;
  // `kernel`: that of its Launchable.
  virtual void Submit(const void* kernel, std::function<void()> work) = 0;
};

// A copy from global to shared memory, not done yet (mma.h). One without an address ends a group.
struct Copy {
  const void* from = nullptr;
  int bytes = 0;
  void* to = nullptr;
  int room = 0;
};

// Whether the emulated GPU has the products of warpgroups (warpgroup_mma.h).
inline bool has_warpgroups = true;

// The most bytes of shared memory that a block of the emulated GPU can have: Hopper's.
inline int64_t most_shared = 227 * 1024;

// Bytes that this thread's blocks have copied so far.
inline thread_local int64_t copied_bytes = 0;

// A thread of a block.
struct Where {
  int thread = 0, threads = 0;
  int64_t block[3] = {}, blocks[3] = {};
  std::byte* shared = nullptr;
  std::byte* slots[2] = {};  // of its warp, for every second synchronisation
  mutable int meetings = 0;  // of the warp, so far
  mutable std::vector<Copy> copies = {};
  mutable bool shows_copies = false;  // products see what was copied, and below: not done yet
  mutable std::vector<std::function<void()>> products = {};
};
// The thread that is running.
extern constinit thread_local const Where* here;

// What this thread does wrong: Launch throws it.
void Fail(const char* what);

enum class Sync { kBlock, kWarp, kShuffle, kMatrix };
// Waits until all threads of the block have come here.
void MeetBlock();
// Waits until all lanes of the warp have come here.
void SyncLanes(Sync what);
// The same, each lane with its value, and returns those of all lanes, kMostBytes apart, which
// remain valid until this lane's next synchronisation but one.
inline constexpr int kMostBytes = 64;
template <typename T>
const std::byte* ExchangeInWarp(Sync what, const T& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMostBytes);
  std::byte* slots = here->slots[here->meetings++ % 2];
  std::memcpy(slots + here->thread % kWarp * kMostBytes, &mine, sizeof(T));
  SyncLanes(what);
  return slots;
}

template <typename T>
T OfLane(const std::byte* all, int lane) {
  T x;
  std::memcpy(&x, all + lane * kMostBytes, sizeof(T));
  return x;
}

// Runs a grid, here and now.
void RunGrid(const Grid& grid, const std::function<void()>& thread);

}  // namespace emulation

inline int Thread() { return emulation::here->thread; }
inline int Threads() { return emulation::here->threads; }
inline int Lane() { return Thread() % kWarp; }
inline int Warp() { return Thread() / kWarp; }
inline int BlockX() { return static_cast<int>(emulation::here->block[0]); }
inline int BlockY() { return static_cast<int>(emulation::here->block[1]); }
inline int BlockZ() { return static_cast<int>(emulation::here->block[2]); }
inline int BlocksX() { return static_cast<int>(emulation::here->blocks[0]); }

inline void SyncBlock() { emulation::MeetBlock(); }
inline void SyncWarp() { emulation::SyncLanes(emulation::Sync::kWarp); }

template <typename T>
T Shuffle(T x, int lane) {
  return emulation::OfLane<T>(emulation::ExchangeInWarp(emulation::Sync::kShuffle, x),
                              lane % kWarp);
}
template <typename T>
T ShuffleXor(T x, int mask) {
  return Shuffle(x, Lane() ^ mask);
}

template <typename T>
T& Shared() {
  return *reinterpret_cast<T*>(emulation::here->shared);
}
inline int64_t MostShared() { return emulation::most_shared; }

template <typename N>
N Round(float x);
template <>
inline BFloat16 Round<BFloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

// By counting units: a value below 2^(e+1), e at least -14, is a multiple of 2^(e-10), rounded to
// even.
template <>
inline Float16 Round<Float16>(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 31 << 15);
  const float size = std::bit_cast<float>(bits & 0x7fffffff);
  if (x != x) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (size >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
  const uint32_t lifted = std::max(bits >> 23 & 0xff, 127u - 14);  // e + 127
  const float in_units = size * std::bit_cast<float>((264 - lifted) << 23);
  const auto units = static_cast<int>((in_units + 0x1p23f) - 0x1p23f);
  return {static_cast<uint16_t>(sign | ((lifted - 113) * 0x400 + units))};
}
inline float ToFloat(Float16 x) { return Widened(x); }

template <auto kKernel, typename... Args>
void Launch(const Grid& grid, Stream stream, const Args&... args) {
  auto work = [grid, args...] { emulation::RunGrid(grid, [&] { kKernel(args...); }); };
  if (stream == nullptr) return work();
  static_cast<emulation::StreamOf*>(stream)->Submit(kLaunchable<kKernel>.kernel(), std::move(work));
}

}  // namespace pp::kernels::cuda
