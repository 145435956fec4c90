// The lanes of one device besides the compute lane: those of its messages, as the transport cuts
// them (one for sends and one for receives of each peer), and one for reductions. Each runs its
// instructions in list order, one at a time, and all lanes run concurrently. A lane continues into
// the next iteration (binding.h) once that has begun.
//
// Two threads share this. The compute thread begins iterations, reports its progress and waits for
// instructions; the communication thread advances the lanes.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/collective.h"
#include "runtime/plan/recorder.h"

namespace pp {

class Lanes {
 public:
  struct Args {
    const BoundList* list = nullptr;
    const Topology* topology = nullptr;
    Transport* transport = nullptr;
    // One for each reduction of the list, in its order.
    std::vector<CollectiveArgs> collectives;
    Device* device = nullptr;
    Recorder* recorder = nullptr;             // null: none
    Bell* compute_bell = nullptr;             // rung when an instruction is over
    const std::atomic<bool>* stop = nullptr;  // set: nobody waits any more
  };
  explicit Lanes(Args args);

  // The compute thread: the next iteration begins. REQUIRES: its number is the next one.
  void Begin(const Iteration& iteration);
  // The compute thread: it has passed instruction `index`, whose work is done with `ticket`.
  void Passed(int index, Ticket ticket);
  // Any thread: instruction `index` of another lane is over in that iteration.
  bool Over(int index, int64_t iteration) const {
    return marks_[index].over.load(std::memory_order_acquire) >= iteration;
  }
  // The compute thread: returns when instruction `index` of another lane is over, or with `stop`.
  void Await(int index, int64_t iteration);

  // Any thread: the compute thread sleeps in Await.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }
  // Any thread: the iteration that has begun.
  int64_t iteration() const { return begun_.load(); }

  // The communication thread: does what can be done now.
  Status Advance(bool* moved);
  // The communication thread: whether a transfer is under way.
  bool in_flight() const { return in_flight_ > 0; }

  // When both threads have ended.
  CommTimes times() const { return times_; }

 private:
  struct Queue {
    int lane = kReductions;
    std::vector<int32_t> indices;
    size_t next = 0;
    int64_t iteration = 0;
    bool started = false;
  };
  // What the two threads tell each other about an instruction, by its index.
  struct Mark {
    std::atomic<int64_t> passed{0};  // the last iteration in which the compute lane was past it
    std::atomic<int64_t> ticket{0};  // of what the compute lane had submitted then
    std::atomic<int64_t> over{0};    // other lanes: the last iteration in which it was over
    std::atomic<double> start{0};    // when it began
    std::atomic<double> end{0};      // and ended
  };

  static constexpr int kReductions = -1;

  Port PortOf(const Instruction& message) const;
  void AddToQueue(int index);
  bool Executes(int index, int64_t iteration) const;
  bool MayStart(int index, int64_t iteration) const;
  Status AdvanceQueue(Queue* queue, bool* moved);
  Status StartNext(const Queue& queue, int index);
  Status TestNext(int index, bool* over);
  void End(int index, const Queue& queue);

  const Args args_;
  std::vector<Queue> queues_;                                    // the communication thread's
  std::vector<Port> ports_;                                      // by index, of messages
  std::vector<std::unique_ptr<RunningCollective>> collectives_;  // by index; null: no reduction
  std::unique_ptr<Mark[]> marks_;
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> rest_{0};  // the iteration that is the epilogue; 0: not known yet
  std::atomic<bool> waiting_{false};
  int in_flight_ = 0;
  CommTimes times_;  // taken by the communication thread, exposed by the compute thread
};

}  // namespace pp
