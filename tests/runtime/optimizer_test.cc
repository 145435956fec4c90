// Step sizes: the learning rate over a training, and clipping.
#include "runtime/model/optimizer.h"

#include <catch2/catch.hpp>

namespace pp {

TEST_CASE("warm-up and cosine") {
  OptimizerOptions options{
      .learning_rate = 1, .min_learning_rate = 0.1, .warmup_steps = 4, .cosine = true, .steps = 14};
  CHECK(LearningRate(options, 1) == 0.25);
  CHECK(LearningRate(options, 4) == 1);
  CHECK(LearningRate(options, 5) == 1);
  CHECK(LearningRate(options, 10) == Approx(0.55));
  CHECK(LearningRate(options, 14) > 0.1);
  CHECK(LearningRate(options, 14) < 0.13);
  options.cosine = false;
  CHECK(LearningRate(options, 14) == 1);
}

TEST_CASE("without a warm-up the first step is a whole one; it ends where it says") {
  const OptimizerOptions options{
      .learning_rate = 2, .min_learning_rate = 0.5, .cosine = true, .steps = 10};
  CHECK(LearningRate(options, 1) == 2);
  for (int64_t step = 2; step <= 10; ++step)
    CHECK(LearningRate(options, step) < LearningRate(options, step - 1));
  CHECK(LearningRate(options, 11) == Approx(0.5));
  CHECK(LearningRate(options, 1000) == Approx(0.5));
}

TEST_CASE("a warm-up longer than the training only warms up") {
  const OptimizerOptions options{
      .learning_rate = 1, .warmup_steps = 100, .cosine = true, .steps = 10};
  for (int64_t step = 1; step <= 10; ++step)
    CHECK(LearningRate(options, step) == Approx(static_cast<double>(step) / 100));
}

}  // namespace pp
