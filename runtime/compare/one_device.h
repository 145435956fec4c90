// The steps of a run on one device: one micro-batch after the other, forward and backward, without
// plan, messages or reductions. The split into stages is the run's, so that it has the same values.
#pragma once

#include <functional>
#include <memory>

#include "runtime/record/values.h"
#include "runtime/run/inputs.h"
#include "schema/program.h"

namespace pp {

// What is perturbed, and by how much.
struct Noise {
  double weights = 0;  // each begins larger or smaller by this share of itself
  // The optimizer's gradients are larger or smaller by this share of their tensor's root mean
  // square. AdamW's first updates are as large for small gradients as for large ones: where one is
  // nearly 0, rounding decides its sign.
  double gradients = 0;
  bool any() const { return weights > 0 || gradients > 0; }
};

class OneDevice {
 public:
  struct Args {
    const Program* program = nullptr;  // the run's
    const Inputs* inputs = nullptr;
    std::string weights, adapter;  // of TrainOptions
    int threads = 1;
    Noise noise;
  };
  // To be called on the thread that uses it.
  static Result<std::unique_ptr<OneDevice>> Make(const Args& args);
  virtual ~OneDevice() = default;

  // Call step after step, from 1. `keep` gets every value.
  virtual Status Step(int64_t step, const std::function<void(const ValueRecord&)>& keep) = 0;
};

}  // namespace pp
