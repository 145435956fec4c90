#include "runtime/model/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pp {

double LearningRate(const OptimizerOptions& options, int64_t step) {
  const auto done = static_cast<double>(step - 1);
  const auto warmup = static_cast<double>(options.warmup_steps);
  if (done < warmup) return options.learning_rate * static_cast<double>(step) / warmup;
  if (!options.cosine) return options.learning_rate;
  const double part = (done - warmup) / std::max(1.0, static_cast<double>(options.steps) - warmup);
  const double height = 0.5 * (1 + std::cos(std::numbers::pi * std::min(part, 1.0)));
  return options.min_learning_rate + height * (options.learning_rate - options.min_learning_rate);
}

}  // namespace pp
