// The lanes of one device besides the compute lane: those of its messages, as the transport cuts
// them (one for sends and one for receives of each peer), and one for reductions. Each runs its
// instructions in list order, one at a time, and all lanes run concurrently. A lane continues into
// the next iteration (binding.h) once that has begun.
//
// Two threads share this. The compute thread begins iterations, reports its progress and waits for
// instructions; the communication thread advances the lanes.
//
// Where a lane's transfers are work of a queue of the device (Transport::QueueOf), its stream, both
// threads only submit, and the queues wait for each other:
//
//   communication thread   the stream follows what the compute queue has made, then takes the
//                          transfer; so on with the next instruction of the lane
//   compute thread         WAIT: once the transfer is in its stream, the compute queue follows it
//
// so that neither queue runs dry while a thread wakes up.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/collective.h"
#include "runtime/plan/device_waits.h"
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
  // The compute thread: what it submits from now on comes after the end of instruction `index` of
  // another lane. Returns when that is certain, or with `stop`.
  void Await(int index, int64_t iteration);

  // Any thread: the compute thread sleeps in Await.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }
  // Any thread: the iteration that has begun, or that one or the one before it.
  int64_t iteration() const { return begun_.load(); }
  Iteration At(int64_t iteration) const {
    return {iteration, BodyPart::kAll, others_[iteration % 2].load(std::memory_order_relaxed)};
  }

  // The communication thread: does what can be done now.
  Status Advance(bool* moved);
  // The communication thread: whether a transfer is under way.
  bool in_flight() const { return in_flight_ > 0; }

  // Any thread: the instruction whose end the device's compute queue waits for; -1: none.
  int device_waits_for() const { return waits_.current(); }

  // When both threads have ended, and the device.
  CommTimes times();

 private:
  // How far the host may get ahead of the device: a stream has room for some hundred pieces of
  // work, and a thread that waits for room would hold up all other streams.
  static constexpr size_t kMostAhead = DeviceWaits::kMost;

  // An instruction that is in its stream and not over yet. The device writes its times.
  struct Submitted {
    int32_t index = -1;
    int64_t iteration = 0;
    Ticket end = 0;
    Recorder::Times times;
  };
  struct LaneState {
    int lane = kReductions;
    std::vector<int32_t> indices;
    size_t next = 0;
    int64_t iteration = 0;
    bool started = false;
    std::deque<Submitted> submitted;  // at most kMostAhead
  };
  // What the two threads tell each other about an instruction, by its index. Tickets: of this
  // iteration and of the one before, by its number modulo 2; no thread gets further ahead.
  struct Mark {
    std::atomic<int64_t> passed{0};     // the last iteration in which the compute lane was past it
    std::atomic<int64_t> tickets[2]{};  // of what the compute lane had submitted then
    std::atomic<int64_t> over{0};       // other lanes: the last iteration in which it was over
    std::atomic<int64_t> submitted{0};  // of one with a stream: in which it was put there
    std::atomic<int64_t> end_tickets[2]{};  // of the stream: its end
    std::atomic<double> start{0};           // without a stream: when it began
    std::atomic<double> end{0};             // and ended
  };
  static constexpr int kReductions = -1;

  Port PortOf(const Instruction& message) const;
  void AddToLane(int index);
  bool Executes(int index, int64_t iteration) const;
  Ticket TicketFor(int index, int64_t iteration) const;
  bool MayStart(int index, int64_t iteration) const;
  Status AdvanceLane(LaneState* lane, bool* moved);
  Status Submit(LaneState* lane, int index);
  void EndSubmitted(LaneState* lane, bool* moved);
  Status StartNext(int index, int64_t iteration);
  Status TestNext(int index, bool* over);
  void End(int index, int64_t iteration, const Recorder::Times& times);
  void Expose(int index, int64_t iteration, double begin, double end);

  const Args args_;
  std::vector<LaneState> lanes_;                                 // the communication thread's
  std::vector<Port> ports_;                                      // by index, of messages
  std::vector<Queue*> streams_;                                  // by index; null: none
  std::vector<std::unique_ptr<RunningCollective>> collectives_;  // by index; null: no reduction
  std::unique_ptr<Mark[]> marks_;
  std::atomic<int64_t> begun_{0};
  std::atomic<int64_t> others_[2]{};  // Iteration::others, by the number modulo 2
  std::atomic<int64_t> rest_{0};      // the iteration that is the epilogue; 0: not known yet
  std::atomic<bool> waiting_{false};
  int in_flight_ = 0;
  CommTimes times_;    // taken by the communication thread, exposed by the compute thread
  DeviceWaits waits_;  // the compute thread's
};

}  // namespace pp
