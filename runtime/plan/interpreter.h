// Executes one device's list, one instruction after the other, and decides nothing: the program
// says what waits for what.
//
// This is the compute lane. It runs on the thread that calls Run, and submits to the device's
// queue; the other lanes (lanes.h) advance on the rank's communication thread. Losses and the
// gradient's norm are values on the device, which are copied out after the instructions that make
// them: they are on the host when the step's ticket is done.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/batches.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/document_bounds.h"
#include "runtime/plan/lanes.h"
#include "runtime/plan/recorder.h"

namespace pp {

// A device's results of one step. Valid when the compute queue is done with `end`.
struct StepResult {
  int64_t step = 0;
  Ticket end = 0;
  // Of the iteration in which it ends, on the device's clock.
  double begin_seconds = 0, end_seconds = 0;
  double norm = 0;             // of the gradient, before clipping; 0 if the plan takes none
  kernels::LossScale scaling;  // if the loss is scaled
  // Of each micro-batch, the sum over its tokens, and the instruction that made it; -1: none here.
  std::vector<double> losses;
  std::vector<int32_t> made_by;
};

class Interpreter {
 public:
  struct Args {
    const Program* program = nullptr;
    const BoundList* list = nullptr;
    Lanes* lanes = nullptr;
    Device* device = nullptr;
    StageExecutor* executor = nullptr;
    const Batches* batches = nullptr;
    int replica = 0;
    int64_t steps_before = 0, updates_before = 0;  // of the training that is continued
    Recorder* recorder = nullptr;                  // null: none
    const std::atomic<bool>* stop = nullptr;       // another rank has failed: leave
  };
  // A step's result is kept for this many steps.
  static constexpr int64_t kResults = 4;

  explicit Interpreter(const Args& args);

  // Submits all of an iteration. The error says step, index and text of the instruction. With
  // `stop` set it returns early, without an error.
  Status Run(const Iteration& iteration);

  // REQUIRES: its iteration has been run, at most kResults - 2 steps ago.
  const StepResult& result(int64_t step) const { return results_[step % kResults]; }

  // The compute thread's current instruction: an index of the list. Any thread may ask.
  int current() const { return current_.load(std::memory_order_relaxed); }
  // Instructions that it has passed since it was made. Any thread may ask.
  int64_t executed() const { return executed_.load(std::memory_order_relaxed); }

  // Of the compute thread; the queue's part comes from the device.
  const TimeSpent& time() const { return time_; }

 private:
  StepResult& ResultOf(int64_t step);
  Status ExecuteRecorded(int index, const Iteration& iteration);
  Status Execute(int index, const Iteration& iteration);
  void Await(int index, int64_t iteration);
  Status Load(const StageCall& call, int64_t step);
  Status Compute(int index, const Iteration& iteration);
  Status MakeCall(int index, const Iteration& iteration, StageCall* call) const;
  void Drop(int index);

  const Args args_;
  Queue& queue_;
  const int64_t norm_blocks_;
  std::array<StepResult, kResults> results_;
  std::vector<int32_t> tokens_;  // of one sequence group, on their way to the device
  DocumentBounds documents_;
  size_t next_freed_ = 0;  // in list->freed
  TimeSpent time_;
  std::atomic<int> current_{0};
  std::atomic<int64_t> executed_{0};
};

}  // namespace pp
