// A routine of a plan on one rank (schema/routines.h): its list, bound to the rank's memory, and
// the lanes and the interpreter that run it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/batches.h"
#include "runtime/plan/interpreter.h"
#include "runtime/plan/lanes.h"
#include "runtime/plan/recorder.h"
#include "schema/topology.h"

namespace pp {

// Which version of the weights of a stage and pipe is the newest (BoundList::SlotOf).
using Newest = std::function<int32_t(int stage, int pipe)>;

class Runner {
 public:
  struct Args {
    const Program* program = nullptr;  // of this routine; it outlives the runner
    Place place;
    const Topology* topology = nullptr;
    Transport* transport = nullptr;
    Device* device = nullptr;
    StageExecutor* executor = nullptr;
    const Batches* batches = nullptr;
    int64_t steps_before = 0, updates_before = 0;                    // as the interpreter's
    Recorder *compute_recorder = nullptr, *lane_recorder = nullptr;  // null: none
    Bell* compute_bell = nullptr;
    const std::atomic<bool>* stop = nullptr;  // set: waits end
    // Called with what was bound, before anything uses it: for tests.
    std::function<void(BoundList*, std::vector<CollectiveArgs>*)> after_bind = nullptr;
  };
  // `walk`: of the program's list, WalkBody.
  Runner(const Args& args, BodyWalk walk);

  // The compute thread: runs the list for that step of the run, counted from 1, which is the last
  // one that begins. The steps of a runner ascend.
  Status Run(int64_t step, BodyPart part = BodyPart::kAll);
  // Of a step that was run lately: see Interpreter.
  const StepResult& result(int64_t step) const { return interpreter_->result(step); }

  int64_t runs() const { return runs_; }
  // The compute thread, before an evaluation: of all versions of the weights it uses these.
  void Use(const Newest& newest);
  const BoundList& bound() const { return bound_; }
  // The communication thread.
  Lanes& lanes() { return *lanes_; }
  const Lanes& lanes() const { return *lanes_; }
  const Interpreter& interpreter() const { return *interpreter_; }
  const Program& program() const { return *args_.program; }
  // Any thread: where it is, an index of the list, and the step of that instruction. If the device
  // waits for others that is where the device is, and not how far the host has gone ahead of it.
  int current() const;
  int64_t StepAt(int index) const { return bound_.StepOf(index, lanes_->At(lanes_->iteration())); }
  bool stopped() const { return args_.stop->load(); }
  // The compute thread: returns when all that it has submitted is done, or with `stop`.
  void Settle() const;

 private:
  const Args args_;
  BoundList bound_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Interpreter> interpreter_;
  int64_t runs_ = 0;
};

// Those of a rank. One of them runs at a time.
class Runners {
 public:
  Runner* Add(const Runner::Args& args, BodyWalk walk);
  // The same, with a program that it keeps. Error: the program is not right.
  Result<Runner*> Add(Program program, Runner::Args args);

  // The compute thread: runs one. What the one before it has submitted is done before another one
  // begins, as that may receive into memory that the former still reads.
  Status Run(Runner* runner, int64_t step, BodyPart part = BodyPart::kAll);

  // The communication thread.
  Status Advance(bool* moved);
  bool waiting() const;
  bool in_flight() const;

  // Any thread: the last one that ran, before that the first one, null before there is one; how
  // many instructions all have passed.
  const Runner* running() const { return running_.load(); }
  int64_t executed() const;
  // When both threads have ended.
  TimeSpent time() const;

 private:
  std::deque<Program> programs_;
  std::vector<std::unique_ptr<Runner>> all_;
  std::atomic<Runner*> running_{nullptr};
};

}  // namespace pp
