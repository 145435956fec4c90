// --layers-per-stage auto against all possible splits.
#include "compiler/balance.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "compiler/compile.h"
#include "compiler/machine/costs.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

ModelConfig Gpt2(int layers) {
  ModelConfig model = Gpt2Model({.vocab_size = 50257,
                                 .max_positions = 1024,
                                 .hidden_size = 768,
                                 .layers = layers,
                                 .heads = 12,
                                 .intermediate_size = 3072});
  return model;
}

// Multiplications of the busiest device for one token, with 64 tokens per sequence.
double Most(const Program& program, const std::vector<int>& layers) {
  std::vector<double> of_device(program.devices, 0);
  for (const Pipe& pipe : program.pipes) {
    for (int stage = 0; stage < program.stages; ++stage)
      of_device[pipe.device_of[stage]] += layers[stage] * (12.0 * 768 * 768 + 768 * 64);
    of_device[pipe.device_of.back()] += 50257.0 * 768;
  }
  return *std::max_element(of_device.begin(), of_device.end());
}

double BestOfAll(const Program& program, int layers) {
  double best = HUGE_VAL;
  std::vector<int> split(program.stages, 0);
  const std::function<void(int, int)> rest = [&](int stage, int left) {
    if (stage == program.stages - 1) {
      split[stage] = left;
      best = std::min(best, Most(program, split));
      return;
    }
    for (split[stage] = 0; split[stage] <= left; ++split[stage])
      rest(stage + 1, left - split[stage]);
  };
  rest(0, layers);
  return best;
}

}  // namespace

TEST_CASE("no split has less for the busiest device") {
  for (const char* scheme : {"1f1b", "interleaved", "fold-fifo", "chimera", "zb-v"}) {
    for (int devices : {1, 2, 4}) {
      for (int layers : {8, 9, 12}) {
        if (devices == 1 && std::string_view(scheme) == "chimera") continue;
        CAPTURE(scheme, devices, layers);
        CompileOptions options = {
            .scheme = scheme, .shape = {devices, 8, 0}, .job = {.sequence_length = 64}};
        options.job.model = Gpt2(layers);
        options.balance_layers = true;
        const Program program = MustCompile(options);
        const std::vector<int>& split = program.job->layers_per_stage;
        CHECK(Most(program, split) == BestOfAll(program, layers));
        // Among the stages without a head none has two layers more than another.
        if (std::string_view(scheme) == "1f1b" && devices == 4) {
          const auto [least, most] = std::minmax_element(split.begin(), split.end() - 1);
          CHECK(*most - *least <= 1);
        }
      }
    }
  }
}

TEST_CASE("with a machine, no split takes the busiest device less time there") {
  PriceSource prices;
  prices.machine = Machines().front();
  for (const char* scheme : {"1f1b", "interleaved", "zb-v", "chimera"}) {
    for (const int width : {48, 768}) {  // mostly launches and traffic, mostly operations
      CAPTURE(scheme, width);
      CompileOptions options = {.scheme = scheme, .shape = {2, 8, 0}, .prices = prices};
      options.job.model = Gpt2(7);
      options.job.model.hidden_size = width;
      options.job.model.intermediate_size = 4 * width;
      options.job.sequence_length = 64;
      options.balance_layers = true;
      Program program = MustCompile(options);
      const auto busiest = [&] {
        const CostModel costs = *CostsOn(prices, program.Head());
        const std::vector<double> shares = program.Shares();
        std::vector<double> of_device(program.devices, 0);
        for (const Pipe& pipe : program.pipes)
          for (int s = 0; s < program.stages; ++s)
            of_device[pipe.device_of[s]] += (costs.f[s] + costs.b[s]) * shares[s];
        return *std::max_element(of_device.begin(), of_device.end());
      };
      const double chosen = busiest();
      double best = HUGE_VAL;
      std::vector<int>& split = program.job->layers_per_stage;
      const std::function<void(int, int)> rest = [&](int stage, int left) {
        if (stage == program.stages - 1) {
          split[stage] = left;
          best = std::min(best, busiest());
          return;
        }
        for (split[stage] = 0; split[stage] <= left; ++split[stage])
          rest(stage + 1, left - split[stage]);
      };
      rest(0, 7);
      CHECK(chosen == Approx(best).epsilon(1e-9));
    }
  }
}

// An embedding that takes time is work, too, and a head is more than a layer.
TEST_CASE("the first and the last stage have no layers where the others suffice") {
  for (const int devices : {3, 4, 5, 8}) {
    CAPTURE(devices);
    CompileOptions options = {.scheme = "1f1b", .shape = {devices, 8, 0}};
    options.prices.machine = Machines().front();
    options.job.model = Gpt2(devices - 2);
    options.balance_layers = true;
    std::vector<int> split(devices, 1);
    split.front() = split.back() = 0;
    CHECK(MustCompile(options).job->layers_per_stage == split);
  }
}

TEST_CASE("GPT-2 124M on two devices: the head weighs as much as five layers and a half") {
  CompileOptions options = {.scheme = "1f1b", .shape = {2, 4}, .job = {.sequence_length = 64}};
  options.job.model = Gpt2(12);
  options.balance_layers = true;
  CHECK(MustCompile(options).job->layers_per_stage == std::vector<int>{9, 3});
}

}  // namespace pp
