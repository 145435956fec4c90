// Executes one device's list, one instruction after the other, and decides nothing: what
// waits for what is in the program.
//
// This is the compute lane. It runs on the thread that calls Run; the other lanes (see
// lanes.h) advance on the rank's communication thread.
#pragma once

#include <atomic>
#include <memory>

#include "runtime/device/backend.h"
#include "runtime/plan/binding.h"
#include "runtime/plan/lanes.h"
#include "runtime/plan/recorder.h"

namespace pp {

// How large a step the optimizer takes.
struct OptimizerOptions {
  double learning_rate = 3e-4;
  double min_learning_rate = 0;  // where the cosine ends
  int64_t warmup_steps = 0;      // linear from 0
  bool cosine = false;           // else constant after the warm-up
  double grad_clip = 1;          // the largest norm; 0: any
  int64_t steps = 1;             // of the whole training
};

// The learning rate of `step`, which counts from 1.
double LearningRate(const OptimizerOptions& options, int64_t step);

class Interpreter {
 public:
  struct Args {
    const Program* program = nullptr;
    int device = 0;
    const BoundList* list = nullptr;
    Lanes* lanes = nullptr;
    Backend* backend = nullptr;
    OptimizerOptions optimizer;
    const double* norm_blocks = nullptr;      // of the whole model
    Recorder* recorder = nullptr;             // null: none
    Bell* bell = nullptr;                     // the compute thread's
    const std::atomic<bool>* stop = nullptr;  // another rank has failed: leave
  };
  explicit Interpreter(const Args& args);

  // Executes the list. The error says step, index and text of the instruction. With `stop`
  // set it returns early, without an error.
  Status Run(int64_t step);

  // What the compute thread is at: an index of the list. Any thread may ask.
  int current() const { return current_.load(std::memory_order_relaxed); }
  // Instructions that it has finished since it was made. Any thread may ask.
  int64_t executed() const { return executed_.load(std::memory_order_relaxed); }
  // It waits for another lane. Any thread may ask.
  bool waiting() const { return waiting_.load(std::memory_order_relaxed); }

  double grad_norm() const { return grad_norm_; }  // of the last step, before clipping
  const TimeSpent& time() const { return time_; }

 private:
  Status ExecuteTimed(int index, int64_t step);
  Status Execute(int index, int64_t step);
  Status Explain(const Status& status, int index, int64_t step) const;
  Status CheckLoss(const Addresses& at) const;
  Status StepStage(const Addresses& at, int64_t step);
  // Sleeps until `over()` or `stop`.
  template <typename Over>
  void Sleep(const Over& over);

  const Args args_;
  int64_t norm_block_count_;
  double grad_norm_ = 0;
  TimeSpent time_;
  double kernel_cpu_ = 0;  // processor seconds in the backend
  std::atomic<int> current_{0};
  std::atomic<int64_t> executed_{0};
  std::atomic<bool> waiting_{false};
};

}  // namespace pp
