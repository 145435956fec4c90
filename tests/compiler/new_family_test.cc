// What a new model family takes: its keys and its table. This one is a Macaron (Lu et al., 2019)
// with half of its MLP before and half after attention; all else, from memory to both backward
// halves, recomputation and tensor parallelism, follows.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "compiler/compile.h"
#include "schema/model/families.h"
#include "tests/kept_report.h"

namespace pp {
namespace {

// --- the file to add to schema/model/ ---------------------------------------------------------

void MacaronKeys(ConfigKeys& keys, ModelConfig& config) {
  keys.Int("vocabulary", kMaxVocabulary, &config.vocab_size);
  keys.Int("positions", kMaxPositions, &config.max_positions);
  keys.Int("width", kMaxWidth, &config.hidden_size);
  keys.Int("mlp", kMaxWidth, &config.intermediate_size);
  keys.Int("depth", kMaxLayers, &config.layers);
  keys.Int("heads", kMaxWidth, &config.heads);
  keys.Divides("width", config.hidden_size, "heads", config.heads);
  keys.Float("epsilon", 1e-12, 1, &config.norm_epsilon, 1e-5f);
  keys.Training("std", 0, 100, &config.initializer_range, 0.02f);
}

ModelTable MacaronTable(const ModelConfig& config) {
  const int64_t c = config.hidden_size, inner = config.intermediate_size;
  const float std = config.initializer_range, epsilon = config.norm_epsilon;
  const HeadsSpec heads = {config.heads, config.heads, config.hidden_size / config.heads, 0,
                           config.sliding_window};
  const auto linear = [&](int64_t in, std::vector<Piece> out, Cut cut) {
    return Linear({in, std::move(out), cut, Matrix::kOutIn, Bias::kYes, std});
  };
  return {.layer_prefix = "blocks.{}.",
          .first = {Embedding({.token_name = "tokens.weight",
                               .vocabulary = config.vocab_size,
                               .width = c,
                               .std = std})},
          .layer = {LayerNorm("norm_a", c, epsilon), linear(c, {{"up_a", inner}}, Cut::kOut),
                    Gelu(inner), linear(inner, {{"down_a", c}}, Cut::kIn), Residual(c, 0, 0),

                    RmsNorm("norm_b", c, epsilon),
                    linear(c, {{"query", c}, {"key", c}, {"value", c}}, Cut::kOut),
                    Rope(heads, config.rope), Attention(heads), linear(c, {{"out", c}}, Cut::kIn),
                    Residual(c, 0, 1),

                    LayerNorm("norm_c", c, epsilon),
                    linear(c, {{"gate_c", inner}, {"up_c", inner}}, Cut::kOut), SwiGlu(inner),
                    linear(inner, {{"down_c", c}}, Cut::kIn), Residual(c, 0, 2)},
          .last = NormAndHead(LayerNorm("norm", c, epsilon), {.name = "tokens.weight",
                                                              .width = c,
                                                              .vocabulary = config.vocab_size,
                                                              .tied = true,
                                                              .std = std})};
}

// --- and its row of the table in families.cc --------------------------------------------------

constexpr ModelFamily kMacaron = {"macaron", "MacaronForCausalLM", MacaronKeys, MacaronTable};

// ----------------------------------------------------------------------------------------------

struct Numbers {
  std::vector<double> losses, norms;
};

Numbers Train(const char* scheme, int devices, int tp, const char* passes = "", int window = 0) {
  const ModelConfig model = {.family = &kMacaron,
                             .vocab_size = 61,
                             .max_positions = 16,
                             .hidden_size = 24,
                             .layers = 4,
                             .heads = 4,
                             .intermediate_size = 36,
                             .tied = true,
                             .sliding_window = window};
  const auto program = Compile({.scheme = scheme,
                                .shape = {devices, 4, 0},
                                .passes = passes,
                                .job = {.model = model, .micro_batch_size = 2, .tp = tp}});
  REQUIRE(program.status().message() == "");
  const auto data =
      std::filesystem::temp_directory_path() / ("new_family_test." + std::to_string(getpid()));
  std::ofstream out(data);
  for (int i = 0; i < 20000; ++i) out << static_cast<char>(' ' + i * i % 29);
  out.close();
  TrainOptions options;
  options.data = {data};
  options.optimizer.steps = 30;
  options.optimizer.learning_rate = 3e-3;
  const KeptReport report = TrainAndKeep(*program, options);
  std::filesystem::remove(data);
  REQUIRE(report.status.message() == "");
  Numbers numbers;
  for (const StepReport& step : report.steps) {
    numbers.losses.push_back(step.loss);
    numbers.norms.push_back(*step.grad_norm);
  }
  return numbers;
}

TEST_CASE("a model of a new family trains, cut in any way") {
  const Numbers one = Train("gpipe", 1, 1);
  CHECK(one.losses.front() == Approx(std::log(61)).epsilon(0.05));
  CHECK(one.losses.back() < 2.5);  // letter frequencies alone give 2.7
  for (const auto& [scheme, passes] : {std::pair{"1f1b", ""}, {"1f1b", "mario"}, {"zb-v", ""}}) {
    const Numbers cut = Train(scheme, 2, 1, passes);
    CHECK(cut.losses == one.losses);
    CHECK(cut.norms == one.norms);
  }
  const Numbers peers = Train("1f1b", 2, 4);
  for (int i = 0; i < 5; ++i) CHECK(peers.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
}

// Sequences have 16 tokens.
TEST_CASE("a window hides what is further back, however the model is cut") {
  const Numbers all = Train("gpipe", 1, 1);
  CHECK(Train("gpipe", 1, 1, "", 16).losses == all.losses);
  const Numbers one = Train("gpipe", 1, 1, "", 2);
  CHECK(one.losses[1] != all.losses[1]);
  CHECK(Train("gpipe", 1, 1, "", 15).losses[1] != all.losses[1]);
  const Numbers cut = Train("1f1b", 2, 1, "mario", 2);
  CHECK(cut.losses == one.losses);
  CHECK(cut.norms == one.norms);
  const Numbers peers = Train("1f1b", 2, 4, "", 2);
  for (int i = 0; i < 5; ++i) CHECK(peers.losses[i] == Approx(one.losses[i]).epsilon(1e-5));
}

}  // namespace
}  // namespace pp
