// A device is memory, queues and events, and kernels.
//
// A queue carries out what is submitted to it in order, some time later: `submit` is not `done`. A
// ticket is the event that one piece of work, and all before it in its queue, is done. Queues run
// side by side; what one needs of another, or of a message, its owner waits for before it submits.
//
//   CPU    a queue is the thread that submits: what is submitted is done
//   CUDA   a queue is a stream, a ticket an event in it
//
// Memory is the device's. The host does not look behind its addresses; CopyIn and CopyOut do.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/bell.h"
#include "runtime/comm/transport.h"
#include "runtime/device/kernels.h"
#include "runtime/device/stage_call.h"
#include "schema/status.h"

namespace pp {

// Counts the work of a queue from 1. 0: nothing, which is always done.
using Ticket = int64_t;

// out[i] = parts[0][i] + parts[1][i] + ..., added in this order in fp32, and also[i], if there is
// such a place, the same. Both may be among the parts. The array of parts stays the caller's until
// the sum is done.
struct SumArgs {
  Dtype dtype = Dtype::kFp32;
  int64_t n = 0;  // numbers
  std::span<const std::byte* const> parts;
  std::byte* out = nullptr;
  std::byte* also = nullptr;
};

// In seconds.
struct QueueTime {
  double busy = 0;       // in work that was submitted
  double processor = 0;  // of the thread that submits, processor time for that
  // Where work goes on by itself: all of `processor`, which started it, or waited for room in the
  // device's own queue.
  double starting = 0;
};

// One thread submits; any thread may ask whether a ticket is done.
class Queue {
 public:
  virtual ~Queue() = default;

  virtual Ticket Submit(StageExecutor& executor, const StageCall& call) = 0;
  virtual Ticket Sum(const SumArgs& args) = 0;
  // `from`, on the host, is the caller's again at once.
  virtual Ticket CopyIn(void* to, const void* from, int64_t bytes) = 0;
  // `to`, on the host, has the bytes when the ticket is done.
  virtual Ticket CopyOut(void* to, const void* from, int64_t bytes) = 0;
  // Behind all work so far, these bytes hold no value any more.
  virtual Ticket Drop(void* at, int64_t bytes) = 0;
  // Notes when the queue comes here, in seconds on the host's steady clock; `seconds` is the
  // queue's until the ticket is done.
  virtual Ticket Stamp(double* seconds) = 0;
  // Of the last work.
  virtual Ticket last() const = 0;
  // From within a call that is being submitted: of what it has put into the queue so far.
  virtual Ticket Mark() = 0;
  // The owner, when all is done: how long the queue has worked.
  virtual QueueTime time() const = 0;

  virtual bool Done(Ticket ticket) const = 0;
  // Not within a step: it does not sleep.
  void WaitFor(Ticket ticket) const {
    while (!Done(ticket)) sched_yield();
  }
};

// Whom a device tells that work is done, where it was not when it was submitted.
struct DeviceBells {
  Bell* compute = nullptr;
  Bell* communication = nullptr;
};

// How ranks meet.
struct ReachArgs {
  Transport* inner = nullptr;                   // outlives what is made
  std::vector<RankCommunicator> communicators;  // empty: messages go through `inner`
};

// What memory holds that nobody has written: as a float a signalling NaN, and far from any token
// id, loss or sum of squares.
inline constexpr uint32_t kUntouchedWord = 0xFFA7A9C1;

class Device {
 public:
  virtual ~Device() = default;

  // Takes the arena, once. Invalid: the machine does not have so many bytes.
  virtual Status Take(int64_t bytes) = 0;
  // REQUIRES: Take was successful.
  virtual std::byte* at(int64_t offset) const = 0;
  // One past the last byte of the arena that was ever written.
  virtual int64_t HighWater() const = 0;

  // The compute lane's, whose owner is the compute thread, and that of reductions, whose owner is
  // the communication thread.
  virtual Queue& compute() = 0;
  virtual Queue& reduce() = 0;

  // What brings messages from and to this device's memory, which outlives it; null: `inner` can do
  // it itself. Its Settle leaves `inner` alone.
  virtual Result<std::unique_ptr<Transport>> Reach(const ReachArgs&) {
    return std::unique_ptr<Transport>();
  }

  // For the compute lane, on its owner, with `threads` threads of a CPU. Throws std::bad_alloc or
  // std::system_error where there is no memory or no thread left.
  virtual std::unique_ptr<Kernels> MakeKernels(const Job& job, int threads) = 0;

  // Waits until all that was submitted is done. Their owners submit nothing any more.
  virtual void Finish() = 0;

  // Why work failed, if it did. Any thread.
  virtual Status status() const { return {}; }
};

}  // namespace pp
