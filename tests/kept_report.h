// A run with its report of each step, which Train itself does not keep.
#pragma once

#include <utility>
#include <vector>

#include "runtime/run/train.h"

namespace pp {

struct KeptReport : TrainReport {
  std::vector<StepReport> steps;
};

inline KeptReport TrainAndKeep(const Program& program, TrainOptions options) {
  KeptReport kept;
  options.on_step = [&kept, next = std::move(options.on_step)](const StepReport& step) {
    kept.steps.push_back(step);
    return next ? next(step) : Status();
  };
  static_cast<TrainReport&>(kept) = Train(program, options);
  return kept;
}

}  // namespace pp
