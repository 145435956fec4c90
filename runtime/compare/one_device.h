// The steps of a run on one device: one micro-batch after the other, forward and backward, without
// plan, messages or reductions. Splits into stages are the run's, so that it has the same values.
#pragma once

#include <functional>
#include <memory>

#include "runtime/compare/values.h"
#include "runtime/run/inputs.h"
#include "schema/program.h"

namespace pp {

// What may be a little other than it should.
struct Noise {
  double weights = 0;  // each begins larger or smaller by so much of itself
  // What the optimizer takes of a gradient is larger or smaller by so much of its tensor's root
  // mean square. AdamW's first updates are as large for small gradients as for large ones: where
  // one is nearly 0, rounding decides of its sign.
  double gradients = 0;
  bool any() const { return weights > 0 || gradients > 0; }
};

class OneDevice {
 public:
  struct Args {
    const Program* program = nullptr;  // the run's
    const Inputs* inputs = nullptr;
    std::string weights;  // TrainOptions::weights
    int threads = 1;
    Noise noise;
  };
  // On the thread that uses it.
  static Result<std::unique_ptr<OneDevice>> Make(const Args& args);
  virtual ~OneDevice() = default;

  // Step after step, from 1. `keep` gets every value.
  virtual Status Step(int64_t step, const std::function<void(const ValueRecord&)>& keep) = 0;
};

}  // namespace pp
