// The validation loss: a plan's evaluation (schema/program.h), on the first batches of other data,
// between two steps or after the last one. It changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/files/batches.h"
#include "runtime/plan/interpreter.h"
#include "runtime/plan/lanes.h"
#include "schema/topology.h"

namespace pp {

// What to evaluate, and when.
struct Validation {
  const Batches* batches = nullptr;  // null: nothing
  int64_t count = 0;                 // of them, from the first one on,
  int64_t tokens = 0;                // with so many targets
  int64_t every = 0;                 // steps of the training; 0: after the last one alone
};

class Evaluator {
 public:
  struct Args {
    Place place;
    const Topology* topology = nullptr;
    Transport* transport = nullptr;
    Device* device = nullptr;
    StageExecutor* executor = nullptr;
    Validation validation;
    Bell* compute_bell = nullptr;
    const std::atomic<bool>* stop = nullptr;  // set: waits end
  };
  // Which version of the weights of a stage and pipe is the newest (BoundList::SlotOf).
  using Newest = std::function<int32_t(int stage, int pipe)>;

  // Of an evaluation (EvaluationOf).
  static Result<std::unique_ptr<Evaluator>> Make(Program evaluation, const Args& args);

  // The compute thread, with nothing else under way: evaluates all batches. *loss: the sum over the
  // tokens of the losses that this rank has computed, or, for a sample, the token that it has
  // drawn; *made: whether it has computed any.
  Status Run(const Newest& newest, double* loss, bool* made);

  // The communication thread, as with the lanes of the steps.
  Lanes& lanes() { return *lanes_; }
  const Lanes& lanes() const { return *lanes_; }
  const Interpreter& interpreter() const { return *interpreter_; }
  // Any thread: it is running; what it is at.
  bool running() const { return running_.load(); }
  const Instruction& current() const { return bound_.list[interpreter_->current()]; }

 private:
  Evaluator(Program evaluation, const Args& args);

  const Args args_;
  const Program program_;
  BoundList bound_;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Interpreter> interpreter_;
  int64_t iteration_ = 0;  // the last one
  std::atomic<bool> running_{false};
};

}  // namespace pp
