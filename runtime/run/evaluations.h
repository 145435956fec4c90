// A rank's evaluations: validation losses after its steps, and the sample after the last one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/run/evaluator.h"
#include "runtime/run/sampler.h"

namespace pp {

class Evaluations {
 public:
  struct Args {
    const Program* program = nullptr;
    Evaluator::Args evaluator;  // with its validation
    SampleOptions sample;
    // Sends a rank a token, to which it calls Hear.
    std::function<void(int to, int32_t token)> tell;
    const std::atomic<bool>* asked_to_stop = nullptr;  // rank 0: the sample ends
  };
  static Result<std::unique_ptr<Evaluations>> Make(Args args);

  // The compute thread, while nothing else is under way.
  bool validates() const { return evaluator_ != nullptr; }
  Status Validate(const Evaluator::Newest& newest, double* loss);
  Status Sample(const Evaluator::Newest& newest);  // nothing if there is none
  // The communication thread, of what Args::tell has sent.
  void Hear(int32_t token);

  // The communication thread.
  Status Advance(bool* moved);
  bool waiting() const;
  bool in_flight() const;

  // Any thread.
  int64_t executed() const;
  const Instruction* current() const;  // null: nothing is evaluated

  // When both threads have ended.
  TimeSpent time() const;
  std::vector<int32_t> sample() const;  // with its prompt; empty: none

 private:
  explicit Evaluations(Args args) : args_(std::move(args)) {}
  int rank() const { return args_.evaluator.transport->rank(); }
  template <typename F>
  void ForEach(const F& f) const {
    if (evaluator_) f(*evaluator_);
    if (sampler_ && sampler_->evaluator() != nullptr) f(*sampler_->evaluator());
  }

  const Args args_;
  std::unique_ptr<Evaluator> evaluator_;  // null: no validation
  std::unique_ptr<Sampler> sampler_;      // null: no sample, or it does not involve this rank
};

}  // namespace pp
