// A rank's evaluations: validation losses, on the first batches of other data, between two steps or
// after the last one, and the sample after that. They are routines of the plan (schema/routines.h),
// and change nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/plan/runner.h"
#include "runtime/run/sampler.h"

namespace pp {

// What to evaluate, and when.
struct Validation {
  const Batches* batches = nullptr;  // null: nothing
  int64_t count = 0;                 // of them, from the first one on,
  int64_t tokens = 0;                // with so many targets
  int64_t every = 0;                 // steps of the training; 0: after the last one alone
};

class Evaluations {
 public:
  struct Args {
    const Program* program = nullptr;
    Runners* runners = nullptr;
    Runner::Args runner;  // without program and data
    Validation validation;
    SampleOptions sample;
    // Sends a rank a token, to which it calls Hear.
    std::function<void(int to, int32_t token)> tell;
    const std::atomic<bool>* asked_to_stop = nullptr;  // rank 0: the sample ends
  };
  // Adds its routines to the runners.
  static Result<std::unique_ptr<Evaluations>> Make(Args args);

  // The compute thread, between steps.
  bool validates() const { return validation_ != nullptr; }
  Status Validate(const Newest& newest, double* loss);
  Status Sample(const Newest& newest);  // nothing if there is none
  // The communication thread, of what Args::tell has sent.
  void Hear(int32_t token);

  // When both threads have ended.
  std::vector<int32_t> sample() const;  // with its prompt; empty: none

 private:
  explicit Evaluations(Args args) : args_(std::move(args)) {}
  int rank() const { return args_.runner.transport->rank(); }

  const Args args_;
  Runner* validation_ = nullptr;      // null: there is none
  std::unique_ptr<Sampler> sampler_;  // null: no sample, or it does not involve this rank
};

}  // namespace pp
