// A sample: tokens with which the trained model continues a prompt, one after the other, by the
// plan's evaluation of one micro-batch, the first of the longest. Its first sequence is the text so
// far, or the last T tokens of that; the last stage draws the next one from its last row, and tells
// rank 0, which tells all devices that evaluate the micro-batch. Rank 0 gets all tokens even if it
// does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/plan/runner.h"

namespace pp {

struct SampleOptions {
  int64_t count = 0;            // tokens; 0: no sample
  std::vector<int32_t> prompt;  // what they continue, at least one
  float temperature = 1;        // 0: always the likeliest token
};

// The text so far, as the evaluation loads it.
class SampledText : public Batches {
 public:
  SampledText(const SampleOptions& options, const Args& args);

  Status Inputs(int64_t step, int replica, int micro, int32_t* inputs) const override;
  Status Targets(int64_t step, int replica, int micro, int32_t* targets) const override;
  Draw DrawAt(int64_t step) const override;
  Result<int64_t> Tokens(int64_t) const override { return 0; }

  // One thread adds; any thread can ask how many there are, and read those.
  void Add(int32_t token);
  int64_t added() const { return size_.load(std::memory_order_acquire) - prompt_; }
  std::vector<int32_t> tokens() const { return {tokens_.begin(), tokens_.begin() + size_.load()}; }

 private:
  int64_t Begin() const;  // of the sequence, in the text

  const int sequence_length_, batch_;
  const int64_t prompt_;
  const float temperature_;
  std::vector<int32_t> tokens_;  // with room for all
  std::atomic<int64_t> size_;
};

// The compute thread: runs an evaluation for its next `count` batches. *loss: the sum over the
// tokens of the losses that this rank has computed, or, for a sample, the token that it has drawn;
// *made: whether it has computed any.
Status Evaluate(Runners* runners, Runner* runner, const Newest& newest, int64_t count, double* loss,
                bool* made);

class Sampler {
 public:
  struct Args {
    SampleOptions options;
    const Program* program = nullptr;  // with its evaluation
    Runners* runners = nullptr;
    Runner::Args runner;                        // without program and data
    std::function<void(int32_t token)> on_own;  // this rank has drawn a token: tell rank 0
  };
  static Result<std::unique_ptr<Sampler>> Make(const Args& args);

  // The compute thread: all tokens. Returns when they have arrived, or the run is stopped.
  Status Run(const Newest& newest);
  // The next token; -1: the sample ends here. Before the sample is complete, called by one thread.
  void Hear(int32_t token);

  std::vector<int32_t> tokens() const { return text_.tokens(); }

 private:
  explicit Sampler(const Args& args);

  const Args args_;
  SampledText text_;
  Runner* runner_ = nullptr;  // null: not involved in the sample
  std::atomic<bool> ended_{false};
};

// Whether a device evaluates that micro-batch.
bool Samples(const Program& program, int device);

}  // namespace pp
