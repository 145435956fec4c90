// The lanes of one list beside the compute lane: one for sends and one for receives of each
// peer, and one for reductions. Each runs its instructions in list order, one at a time,
// and all lanes run side by side.
//
// Two threads meet here. The compute thread starts the list, says how far it has come and
// waits for instructions; the communication thread makes the lanes advance.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/comm/collectives.h"
#include "runtime/comm/transport.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/recorder.h"

namespace pp {

class Lanes {
 public:
  struct Args {
    const BoundList* list = nullptr;
    Transport* transport = nullptr;
    TiedSum* tied = nullptr;
    NormGather* norm = nullptr;
    Recorder* recorder = nullptr;  // null: none
    Bell* compute_bell = nullptr;  // rung when an instruction is over
  };
  explicit Lanes(const Args& args);

  // The compute thread: begins the list again. REQUIRES: it is finished, or new; `step` is
  // positive and another one than before.
  void Begin(int64_t step);
  // The compute thread: instruction `index` of the compute lane is over.
  void Passed(int index);
  // Any thread: instruction `index` of another lane is over.
  bool Over(int index) const {
    return over_[index].load(std::memory_order_acquire) == step_.load();
  }
  // Any thread: the step that has begun.
  int64_t step() const { return step_.load(); }
  // Any thread: all lanes are at their ends.
  bool finished() const { return left_.load(std::memory_order_acquire) == 0; }

  // The communication thread: does what can be done now.
  Status Advance(bool* moved);
  // The communication thread: whether a transfer is under way.
  bool in_flight() const { return in_flight_ > 0; }

 private:
  struct Queue {
    Port port;  // of SEND and RECV
    std::vector<int32_t> indices;
    size_t next = 0;
    bool started = false;
    double start = 0;
  };
  void AddToQueue(int index, const Instruction& instruction);
  Status AdvanceQueue(Queue* queue, bool* moved);
  Status StartNext(const Queue& queue, int index);
  Status TestNext(const Queue& queue, int index, bool* over);

  const Args args_;
  std::vector<Queue> queues_;  // the communication thread's
  int64_t total_ = 0;
  std::atomic<int64_t> step_{0};
  std::atomic<int32_t> passed_{-1};  // the last finished compute instruction
  std::atomic<int64_t> left_{0};
  std::unique_ptr<std::atomic<int64_t>[]> over_;  // the step in which it was last over
  int64_t running_ = 0;                           // the step that the queues are in
  int in_flight_ = 0;
};

// Seconds on the clock of all recorders.
double Now();

}  // namespace pp
