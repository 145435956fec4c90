// A device is memory, queues and events, and kernels.
//
// A queue carries out what is submitted to it in order, some time later: `submit` is not `done`. A
// ticket is the event that one piece of work, and all before it in its queue, is done. Queues run
// concurrently; if work in one needs another's, or a message, the owner waits for that before it
// submits, or lets the queue itself do so (Follow).
//
//   CPU    a queue is the thread that submits: what is submitted is done
//   CUDA   a queue is a stream, a ticket an event in it
//
// Memory is the device's. The host does not access its addresses; CopyIn and CopyOut do.
#pragma once

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/comm/bell.h"
#include "runtime/comm/links.h"
#include "runtime/device/kernels.h"
#include "runtime/device/stage_call.h"
#include "schema/base/status.h"

namespace pp {

// Counts the work of a queue from 1. 0: nothing, which is always done.
using Ticket = int64_t;

// out[i] = parts[0][i] + parts[1][i] + ..., added in this order in fp32; if there is an `also`,
// also[i] is the same. Both may be among the parts. The array of parts is read at once.
struct SumArgs {
  Dtype dtype = Dtype::kFp32;
  int64_t n = 0;  // elements
  std::span<const std::byte* const> parts;
  std::byte* out = nullptr;
  std::byte* also = nullptr;
};

// Seconds.
struct QueueTime {
  double busy = 0;       // in work that was submitted
  double processor = 0;  // processor time of the submitting thread for that
  // If work runs asynchronously: all of `processor`, which launched it, or waited for room in the
  // device's own queue.
  double starting = 0;
};

// One thread submits; any thread may ask whether a ticket is done.
class Queue {
 public:
  virtual ~Queue() = default;

  virtual Ticket Submit(StageExecutor& executor, const StageCall& call) = 0;
  virtual Ticket Sum(const SumArgs& args) = 0;
  // `from`, on the host, can be reused immediately.
  virtual Ticket CopyIn(void* to, const void* from, int64_t bytes) = 0;
  // `to`, on the host, has the bytes when the ticket is done.
  virtual Ticket CopyOut(void* to, const void* from, int64_t bytes) = 0;
  // After all work so far, these bytes hold no value any more.
  virtual Ticket Drop(void* at, int64_t bytes) = 0;
  // Records when the queue reaches this point, in seconds on the host's steady clock; `seconds`
  // belongs to the queue until the ticket is done.
  virtual Ticket Stamp(double* seconds) = 0;
  // What is submitted from now on begins after `ticket` of `other`, a queue of the same device;
  // its owner may be another thread.
  virtual void Follow(const Queue& other, Ticket ticket) = 0;
  // Of the last work.
  virtual Ticket last() const = 0;
  // From within a call that is being submitted: for what it has put into the queue so far.
  virtual Ticket Mark() = 0;
  // The owner, when all is done: how long the queue has worked.
  virtual QueueTime time() const = 0;

  virtual bool Done(Ticket ticket) const = 0;
  // Not to be used within a step, which waits for other things, too.
  virtual void WaitFor(Ticket ticket) const {
    while (!Done(ticket)) sched_yield();
  }
};

// Whom a device tells that work is done, if it was not done when it was submitted.
struct DeviceBells {
  Bell* compute = nullptr;
  Bell* communication = nullptr;
};

// The contents of memory that nobody has written: as a float a signalling NaN, and far from any
// token id, loss or sum of squares.
inline constexpr uint32_t kUntouchedWord = 0xFFA7A9C1;

class Device {
 public:
  virtual ~Device() = default;

  // Takes the arena, once. Invalid: the machine does not have this many bytes.
  virtual Status Allocate(int64_t bytes) = 0;
  // REQUIRES: Allocate was successful.
  virtual std::byte* at(int64_t offset) const = 0;
  // One past the last byte of the arena that was ever written.
  virtual int64_t HighWater() const = 0;
  // The device's memory that has been taken outside the arena.
  virtual int64_t bytes_outside() const { return 0; }

  // The queues of the compute lane, owned by the compute thread, and of reductions, owned by the
  // communication thread.
  virtual Queue& compute() = 0;
  virtual Queue& reduce() = 0;

  // A transport for messages from and to this device's memory (runtime/comm/links.h); the device
  // outlives it; null: the inner one can do it itself. Its Settle does not settle the inner one.
  virtual Result<std::unique_ptr<Transport>> MakeTransport(const Links& /*links*/) {
    return std::unique_ptr<Transport>();
  }

  // For the compute lane, on its owner. Throws std::bad_alloc or std::system_error where there is
  // no memory or no thread left. REQUIRES: the job counts this kind of device's memory.
  struct KernelsArgs {
    const Job* job = nullptr;
    int threads = 1;                 // of a CPU
    std::byte* workspace = nullptr;  // in the arena: WorkspaceOf(job)
  };
  virtual std::unique_ptr<Kernels> MakeKernels(const KernelsArgs& args) = 0;

  // Waits until all that was submitted is done. The owners must have stopped submitting.
  virtual void Finish() = 0;

  // Why work failed, if it did. Any thread.
  virtual Status status() const { return {}; }
};

}  // namespace pp
