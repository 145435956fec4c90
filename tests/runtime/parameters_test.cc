// Parameters outside of the micro-batches: where they come from, and that shards of the optimizer
// have the bits of the whole.
#include "runtime/model/parameters.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/device/cpu_kernels.h"
#include "tests/models.h"

namespace pp {
namespace {

constexpr char kDir[] = "tests/reference/gpt2_tiny";

// With tensors of several norm blocks.
Program MakeProgram(int stages) {
  Program program;
  program.stages = program.devices = stages;
  Job& job = program.job.emplace();
  job.model = Gpt2Model({.vocab_size = 300,
                         .max_positions = 8,
                         .hidden_size = 160,
                         .layers = 2,
                         .heads = 2,
                         .intermediate_size = 640});
  job.sequence_length = 8;
  job.layers_per_stage.assign(stages, 2 / stages);
  return program;
}

using Bytes = std::vector<std::byte>;  // aligned as floats are

Bytes RandomFloats(int64_t bytes, unsigned seed) {
  Bytes out(bytes);
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> number(-1, 1);
  for (int64_t at = 0; at < bytes; at += 4) {
    const float x = number(random);
    std::memcpy(out.data() + at, &x, sizeof x);
  }
  return out;
}

AdamWOptions Options(int64_t step) {
  static const kernels::Clipped half = {.scale = 0.5f};
  return {.learning_rate = 1e-2f, .weight_decay = 0.1f, .clipped = &half, .step = step};
}

}  // namespace

TEST_CASE("the optimizer on the shards of all copies has the bits of the whole, norm included") {
  constexpr int kSteps = 2;
  for (const int stages : {1, 2})
    for (int stage = 0; stage < stages; ++stage) {
      const Program program = MakeProgram(stages);
      const StageLayout layout = LayoutStage(*program.job, stage);
      const auto kernels = MakeCpuKernels(*program.job, 1);
      const std::vector<Bucket> buckets = BucketsOf(program, stage);
      const Bytes first = RandomFloats(layout.weights_bytes, 1);
      const Bytes wgrads[kSteps] = {RandomFloats(layout.wgrad_bytes, 2),
                                    RandomFloats(layout.wgrad_bytes, 3)};
      Bytes whole = first, moments(layout.optimizer_bytes);
      std::vector<std::vector<double>> norms(kSteps, std::vector<double>(layout.norm_blocks, -1));
      for (int step = 0; step < kSteps; ++step) {
        SumSquares(*kernels, AllParts(layout), wgrads[step].data(), norms[step].data());
        StepAdamW(*kernels, AllParts(layout), Options(step + 1),
                  {wgrads[step].data(), moments.data(), whole.data()});
      }
      for (const int64_t copies : {1, 2, 3, 8}) {
        INFO("stage " << stage << " of " << stages << ", " << copies << " copies");
        Bytes shared = first;
        auto norms_of_shards = norms;
        for (auto& norm : norms_of_shards) std::fill(norm.begin(), norm.end(), -1);
        for (int64_t copy = 0; copy < copies; ++copy) {
          const OptimizerShards shards = OptimizerShardsOf(layout, buckets, copies, copy);
          const auto parts = PartsOfShards(layout, shards);
          Bytes mine(shards.bytes);
          for (int step = 0; step < kSteps; ++step) {
            SumSquares(*kernels, parts, wgrads[step].data(), norms_of_shards[step].data());
            StepAdamW(*kernels, parts, Options(step + 1),
                      {wgrads[step].data(), mine.data(), shared.data()});
          }
        }
        CHECK((shared == whole));
        CHECK(norms_of_shards == norms);
      }
    }
}

TEST_CASE("shards update each number once, with moments of its own") {
  const Program program = MakeProgram(2);
  for (const int stage : {0, 1}) {
    const StageLayout layout = LayoutStage(*program.job, stage);
    std::vector<bool> updated(layout.weights_bytes / 4);
    int64_t blocks = 0;
    for (int64_t copy = 0; copy < 3; ++copy) {
      const OptimizerShards shards = OptimizerShardsOf(layout, BucketsOf(program, stage), 3, copy);
      std::vector<bool> moments(shards.bytes / 4 + 1);
      auto take = [](std::vector<bool>& taken, int64_t at) {
        const bool is_new = !taken.at(at / 4);
        taken[at / 4] = true;
        return is_new;
      };
      for (const OwnedPart& owned : PartsOfShards(layout, shards)) {
        bool once = true;
        for (int64_t at = 0; at < 4 * owned.part.count; at += 4)
          once = once && take(updated, owned.part.tensor->weight + 4 * owned.part.begin + at) &&
                 take(moments, owned.m + at) && take(moments, owned.v + at);
        CHECK(once);
        blocks += owned.part.blocks();
      }
    }
    int64_t numbers = 0;
    for (const Tensor& tensor : layout.tensors) numbers += tensor.elements();
    CHECK(std::count(updated.begin(), updated.end(), true) == numbers);
    CHECK(blocks == layout.norm_blocks);
  }
}

TEST_CASE("vectors do not decay, matrices do") {
  const Program program = MakeProgram(2);
  const StageLayout layout = LayoutStage(*program.job, 1);
  const auto kernels = MakeCpuKernels(*program.job, 1);
  Bytes weights = RandomFloats(layout.weights_bytes, 1), moments(layout.optimizer_bytes);
  const Bytes before = weights, wgrad(layout.wgrad_bytes);  // no gradient
  StepAdamW(*kernels, AllParts(layout), Options(1), {wgrad.data(), moments.data(), weights.data()});
  for (const Tensor& tensor : layout.tensors) {
    INFO(tensor.name());
    const bool same = std::memcmp(weights.data() + tensor.weight, before.data() + tensor.weight,
                                  tensor.bytes()) == 0;
    CHECK(same != tensor.matrix);
  }
}

TEST_CASE("tied gradients are added where both are on one stage") {
  const StageLayout alone = LayoutStage(*MakeProgram(1).job, 0);
  const Bytes before = RandomFloats(alone.wgrad_bytes, 5);
  Bytes wgrad = before;
  AddTied(alone, wgrad.data());
  auto number = [](const Bytes& bytes, int64_t at) {
    float x = 0;
    std::memcpy(&x, bytes.data() + at, sizeof x);
    return x;
  };
  bool added = true;
  for (int64_t at = 0; at < alone.tied_bytes; at += 4)
    added =
        added && number(wgrad, alone.tied_lookup + at) ==
                     number(before, alone.tied_lookup + at) + number(before, alone.tied_head + at);
  CHECK(added);
  const StageLayout first = LayoutStage(*MakeProgram(2).job, 0);
  Bytes other = RandomFloats(first.wgrad_bytes, 5);
  const Bytes untouched = other;
  AddTied(first, other.data());
  CHECK(other == untouched);
}

TEST_CASE("a new model depends on the seed, the tensor, and nothing else") {
  const StageLayout layout = LayoutStage(*MakeProgram(2).job, 0);
  auto read = [](uint64_t seed, const Tensor& tensor) {
    std::vector<float> numbers(tensor.elements(), NAN);
    auto source = WeightSource::New(seed);
    REQUIRE(source.ok());
    REQUIRE(source->Read(tensor, numbers.data()).ok());
    return numbers;
  };
  std::vector<std::vector<float>> random;
  for (const Tensor& tensor : layout.tensors) {
    INFO(tensor.name());
    const std::vector<float> numbers = read(5, tensor);
    CHECK(numbers == read(5, tensor));
    CHECK((numbers != read(6, tensor)) == (tensor.init_std != 0));
    if (tensor.init_std != 0) {
      for (auto& other : random)
        CHECK_FALSE(std::equal(numbers.begin(), numbers.begin() + 100, other.begin()));
      random.push_back(numbers);
    } else {
      CHECK(numbers == std::vector<float>(tensor.elements(), tensor.init_mean));
    }
  }
}

TEST_CASE("what a file of weights lacks is named") {
  Result<ModelConfig> model = LoadModelConfig(std::string(kDir) + "/config.json");
  REQUIRE(model.ok());
  auto source = WeightSource::Open(kDir, *model);
  REQUIRE(source.ok());
  std::vector<float> out(97 * 36);
  Tensor tensor{.pieces = {{"transformer.wte.weight", 97}}, .rows = 97, .cols = 36, .matrix = true};
  CHECK(source->Read(tensor, out.data()).ok());
  tensor.pieces[0].name = "transformer.h.77.ln_1.weight";
  CHECK(source->Read(tensor, out.data()).message() ==
        std::string(kDir) + "/model.safetensors: tensor transformer.h.77.ln_1.weight is missing");
  const Tensor wrong{
      .pieces = {{"transformer.wte.weight", 36}}, .rows = 36, .cols = 97, .matrix = true};
  CHECK(source->Read(wrong, out.data()).code() == Code::kInvalid);
  CHECK_THAT(source->Read(wrong, out.data()).message(), Catch::Contains("wte.weight"));
  CHECK(WeightSource::Open("tests/nowhere", *model).status().code() == Code::kInvalid);
  // Weights of the same shapes, but of another model.
  model->heads *= 2;
  CHECK(WeightSource::Open(kDir, *model).status().message() ==
        std::string(kDir) + "/config.json: n_head is " + std::to_string(model->heads / 2) +
            " (the plan's model has " + std::to_string(model->heads) + ")");
  model->heads /= 2;
  model->norm_epsilon = 1e-6f;
  CHECK_THAT(
      WeightSource::Open(kDir, *model).status().message(),
      Catch::Contains("config.json: layer_norm_epsilon is 1e-05 (the plan's model has 1e-06)"));
}

}  // namespace pp
