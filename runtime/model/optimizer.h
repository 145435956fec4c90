// Step sizes of the optimizer.
#pragma once

#include <cstdint>
#include <optional>

namespace pp {

struct OptimizerOptions {
  double learning_rate = 3e-4;
  double min_learning_rate = 0;  // where the cosine ends
  int64_t warmup_steps = 0;      // linear from 0
  bool cosine = false;           // else constant after the warm-up
  // AdamW's; beta2 as for GPT-3 and most language models since: PyTorch's default is 0.999.
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices
  double grad_clip = 1;       // the largest norm; 0: no limit
  // If the dtype scales the loss (kernels/loss_scale.h): the initial scale of a new training,
  // 65536, and the number of good steps after which it is doubled.
  std::optional<double> loss_scale;
  int64_t loss_scale_every = 2000;
  int64_t steps = 1;  // of the whole training
};

// The learning rate of `step`, which counts from 1.
double LearningRate(const OptimizerOptions& options, int64_t step);

}  // namespace pp
