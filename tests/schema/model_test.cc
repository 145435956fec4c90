#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "schema/model/layout.h"
#include "schema/model/work.h"
#include "tests/models.h"

namespace pp {
namespace {

constexpr char kTiny[] =
    R"({"model_type":"gpt2","vocab_size":97,"n_positions":32,"n_embd":36,"n_layer":4,"n_head":3)";

std::string Error(const std::string& more) {
  const Result<ModelConfig> config = ParseModelConfig(kTiny + more + "}", "c.json");
  return config.ok() ? "ok" : config.status().message();
}

ModelConfig Gpt2() {
  return Gpt2Model({.vocab_size = 50257,
                    .max_positions = 1024,
                    .hidden_size = 768,
                    .layers = 12,
                    .heads = 12,
                    .intermediate_size = 3072});
}

// Nine heads, three of keys and values, 108 floats together.
ModelConfig Llama() {
  return {.family = FindFamily("llama"),
          .vocab_size = 997,
          .max_positions = 32,
          .hidden_size = 96,
          .layers = 12,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 12,
          .intermediate_size = 200};
}

TEST_CASE("a configuration has Hugging Face's names and defaults") {
  const Result<ModelConfig> config =
      ParseModelConfig(std::string(kTiny) + R"(,"n_inner":null,"attn_pdrop":0.2})", "c.json");
  REQUIRE(config.ok());
  CHECK(config->intermediate_size == 144);
  CHECK(config->attention_dropout == 0.2f);
  CHECK(config->residual_dropout == 0.1f);
  CHECK(config->tied);
  CHECK(LoadModelConfig("tests/reference/gpt2_tiny/config.json").ok());
}

TEST_CASE("a wrong configuration is an error that says what would be right") {
  CHECK(Error("") == "ok");
  CHECK(Error(R"(,"activation_function":"gelu_pytorch_tanh")") == "ok");
  CHECK(
      Error(R"(,"activation_function":"relu")") ==
      "c.json: activation_function is \"relu\" (gelu_new or gelu_pytorch_tanh or gelu_fast, which "
      "are the same; gelu or gelu_python, which are the same)");
  CHECK(Error(R"(,"model_type":"mamba")") ==
        "c.json: model_type is \"mamba\" (\"gpt2\", \"llama\", \"mistral\", \"qwen2\", \"qwen3\")");
  CHECK(Error(R"(,"n_head":5)") ==
        "c.json: n_embd is 36, which n_head 5 does not divide (1, 2, 3, 4, 6, 9, 12, 18, 36 "
        "would)");
  CHECK(Error(R"(,"n_layer":0)") == "c.json: n_layer is 0 (a whole number from 1 to 65536)");
  CHECK(Error(R"(,"n_layer":-1)") == "c.json: n_layer is -1 (a whole number from 1 to 65536)");
  CHECK(Error(R"(,"n_layer":18446744073709551615)") ==
        "c.json: n_layer is 18446744073709551615 (a whole number from 1 to 65536)");
  CHECK(Error(R"(,"n_layer":"4")") == "c.json: n_layer is \"4\" (a whole number from 1 to 65536)");
  CHECK(Error(R"(,"embd_pdrop":1)") ==
        "c.json: embd_pdrop is 1 (a number of at least 0 and less than 1)");
  CHECK(Error(R"(,"scale_attn_weights":false)") ==
        "c.json: scale_attn_weights is false (only true is supported)");
  CHECK(ParseModelConfig(R"({"model_type":"gpt2"})", "c.json").status().message() ==
        "c.json: vocab_size is missing (a number from 1 to 16777216)");
  CHECK(ParseModelConfig("{", "c.json").status().message() ==
        "c.json: not a JSON object (a Hugging Face config.json)");
  CHECK(LoadModelConfig("no/such.json").status().message() ==
        "no/such.json: cannot be read: No such file or directory (a Hugging Face config.json)");
  CHECK(LoadModelConfig("no/such.json").status().code() == Code::kInvalid);
}

TEST_CASE("layers are split evenly or as told") {
  CHECK(*SplitLayers(12, 4) == std::vector<int>{3, 3, 3, 3});
  CHECK(SplitLayers(12, 5).status().message() ==
        "12 layers do not divide into 5 stages (1, 2, 3, 4, 6, 12 would; or --layers-per-stage)");
  CHECK(CheckSplit({0, 5, 7}, 12, 3).ok());
  CHECK(CheckSplit({5, 7}, 12, 3).message() == "2 numbers of layers for 3 stages (one per stage)");
  CHECK(CheckSplit({5, 6}, 12, 2).message() ==
        "the stages have 11 layers together (the model has 12)");
  CHECK(CheckSplit({13, -1}, 12, 2).message() == "-1 layers for stage 1 (0 or more)");
}

TEST_CASE("a job is checked as a whole") {
  const Job job = {Gpt2(), 4, 64, {6, 6}};
  CHECK(CheckJob(job).ok());
  Job wrong = job;
  wrong.sequence_length = 1025;
  CHECK(CheckJob(wrong).message() == "--seq-length: is 1025 (1 to 1024, the model's positions)");
  wrong = job;
  wrong.micro_batch_size = 0;
  CHECK(CheckJob(wrong).message() == "--micro-batch-size: is 0 (a whole number from 1 to 1048576)");
  wrong = job;
  wrong.layers_per_stage = {};
  CHECK_FALSE(CheckJob(wrong).ok());
}

// Places of a layout must be aligned, in order and without overlap.
void CheckPlaces(std::vector<std::pair<int64_t, int64_t>> places, int64_t bytes) {
  std::sort(places.begin(), places.end());
  int64_t end = 0;
  for (const auto& [begin, size] : places) {
    CHECK(begin % kAlign == 0);
    CHECK(begin >= end);
    CHECK(begin < end + kAlign);
    end = begin + size;
  }
  CHECK(end == bytes);
}

TEST_CASE("stages hold the whole model, whatever the split") {
  const std::vector<std::vector<int>> splits = {{12}, {6, 6}, {0, 5, 7, 0}, {3, 3, 3, 3}};
  for (const std::vector<int>& split : splits) {
    const Job job = {Gpt2(), 4, 64, split};
    int64_t parameters = 0, blocks = 0;
    for (int s = 0; s < job.stages(); ++s) {
      const StageLayout layout = LayoutStage(job, s);
      CHECK(layout.first_norm_block == blocks);
      parameters += layout.parameters;
      blocks += layout.norm_blocks;
      std::vector<std::pair<int64_t, int64_t>> weights, wgrads;
      for (const Tensor& tensor : layout.tensors) {
        weights.emplace_back(tensor.weight, tensor.bytes());
        wgrads.emplace_back(tensor.wgrad, tensor.bytes());
      }
      if (job.stages() == 1) wgrads.emplace_back(layout.tied_head, layout.tied_bytes);
      CheckPlaces(weights, layout.weights_bytes);
      CheckPlaces(wgrads, layout.wgrad_bytes);
    }
    CHECK(parameters == 124439808);  // GPT-2 "124M"
    CHECK(blocks == NormBlocks(job));
    CHECK(blocks == NormBlocks({Gpt2(), 1, 1, {12}}));
  }
}

TEST_CASE("sizes of GPT-2 124M in two stages") {
  const Job job = {Gpt2(), 4, 64, {6, 6}};
  const StageLayout a = LayoutStage(job, 0), b = LayoutStage(job, 1);
  CHECK(a.act_bytes == 4 * 64 * 768 * 4);
  CHECK(b.act_bytes == 0);
  CHECK(a.tokens_bytes == 1024);
  CHECK(b.targets_bytes == 1024);
  CHECK(a.loss_bytes == 0);
  CHECK(b.loss_bytes == 8);
  CHECK(b.operators.back().op.in == 50272);  // room for whole sixteens of tokens
  // 9 C + 4 statistics + H scores per token and layer; the stream between layers and from the
  // embedding; in the last stage the stream's end, two statistics and the logits.
  CHECK(a.stash_bytes == 256 * 4 * (6 * (9 * 768 + 4 + 12) + 6 * 768));
  CHECK(b.stash_bytes == 256 * 4 * (6 * (9 * 768 + 4 + 12) + 6 * 768 + 2 + 50272));
  CHECK(a.tied_head == -1);
  CHECK(a.tied_lookup == a.tensors.front().wgrad);
  CHECK(b.tied_head == b.tensors.back().wgrad);
  CHECK(b.tensors.back().name() == "transformer.wte.weight");
  CHECK(b.tensors.back().blocks == 0);
}

// Statistics stay fp32, and so do tokens, the loss and all that belongs to weights.
TEST_CASE("sizes of GPT-2 124M with activations of two bytes") {
  Job job = {Gpt2(), 4, 64, {6, 6}};
  const StageLayout floats[] = {LayoutStage(job, 0), LayoutStage(job, 1)};
  job.dtype = GENERATE(Dtype::kBf16, Dtype::kFp16);
  const StageLayout a = LayoutStage(job, 0), b = LayoutStage(job, 1);
  CHECK(a.act_bytes == 4 * 64 * 768 * 2);
  CHECK(a.grad_bytes == a.act_bytes);
  CHECK(a.stash_bytes == 256 * (2 * 6 * (9 * 768 + 768) + 4 * 6 * (4 + 12)));
  CHECK(b.stash_bytes == 256 * (2 * (6 * (9 * 768 + 768) + 50272) + 4 * (6 * (4 + 12) + 2)));
  for (const int s : {0, 1}) {
    const StageLayout& half = s == 0 ? a : b;
    CHECK(half.weights_bytes == floats[s].weights_bytes);
    CHECK(half.wgrad_bytes == floats[s].wgrad_bytes);
    CHECK(half.optimizer_bytes == floats[s].optimizer_bytes);
    CHECK(half.tokens_bytes == floats[s].tokens_bytes);
    CHECK(half.targets_bytes == floats[s].targets_bytes);
    CHECK(half.loss_bytes == floats[s].loss_bytes);
    // Of the work, the parts of the norms' gradients: gamma's and beta's of 12 or 13.
    const int64_t parts = (s == 0 ? 12 : 13) * 2 * 768;
    CHECK(2 * (half.work_bytes - 4 * parts) == floats[s].work_bytes - 4 * parts);
  }
  CHECK(PeerExchanges(job).empty());
  job.tp = 2;
  for (const PeerExchange& exchange : PeerExchanges(job))
    CHECK((exchange.dtype == job.dtype) == (exchange.numbers == 256 * 768));
}

constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":97,"max_position_embeddings":32,"hidden_size":36,)"
    R"("num_hidden_layers":4,"num_attention_heads":6,"intermediate_size":50)";

// The same with another family's norms and biases.
ModelConfig Qwen(const char* family) {
  ModelConfig model = Llama();
  model.family = FindFamily(family);
  return model;
}

TEST_CASE("a configuration of LLaMA has the angles of both ways to write them") {
  const auto parse = [](const std::string& more) {
    return ParseModelConfig(kLlama + more + "}", "c.json");
  };
  const auto plain = parse("");
  REQUIRE(plain.ok());
  CHECK((plain->kv_heads == 6 && plain->head_dim == 6));
  CHECK((!plain->tied && !plain->attention_bias && !plain->mlp_bias));
  CHECK(plain->norm_epsilon == 1e-6f);
  CHECK(plain->rope == RopeConfig{});
  const std::string llama3 =
      R"("rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":64})";
  const auto before = parse(R"(,"rope_theta":5e5,"rope_scaling":{)" + llama3);
  const auto since = parse(R"(,"rope_parameters":{"rope_theta":500000,)" + llama3);
  REQUIRE((before.ok() && since.ok()));
  CHECK(before->rope == RopeConfig{5e5f, RopeScaling::kLlama3, 8, 64, 1, 4});
  CHECK(since->rope == before->rope);
  CHECK(*ParseModelConfig(ToJson(*since), "again") == *since);

  const auto error = [&](const std::string& more) { return parse(more).status().message(); };
  CHECK(error(R"(,"num_key_value_heads":4)") ==
        "c.json: num_attention_heads is 6, which num_key_value_heads 4 does not divide (1, 2, 3, 6 "
        "would)");
  CHECK(error(R"(,"head_dim":5)") ==
        "c.json: num_attention_heads and head_dim leave no pairs of numbers for RoPE (an even "
        "head_dim)");
  CHECK(error(R"(,"hidden_act":"gelu")") ==
        "c.json: hidden_act is \"gelu\" (silu or swish, which are the same)");
  CHECK(error(R"(,"rope_scaling":{"type":"dynamic","factor":2})") ==
        "c.json: rope_scaling: rope_type is \"dynamic\" (\"default\", \"linear\", \"llama3\" or "
        "\"yarn\")");
  CHECK(error(R"(,"rope_scaling":{"rope_type":"llama3"})") ==
        "c.json: rope_scaling: factor is missing (at least 1)");
  CHECK(error(R"(,"rope_parameters":7)") == "c.json: rope_parameters is 7 (an object, or null)");
}

// For what a forward keeps, and for what BW_input leaves to BW_weight.
TEST_CASE("stash and work are full of what the operators keep, side by side") {
  const std::vector<int> split = GENERATE(std::vector<int>{12}, std::vector<int>{0, 7, 0, 5, 0});
  ModelConfig model = GENERATE(Gpt2(), Llama(), Qwen("qwen2"), Qwen("qwen3"));
  model.residual_dropout = GENERATE(0.0f, 0.1f);
  Job job = {model, 3, 7, split};
  if (GENERATE(false, true))
    job.keep = {OperatorKind::kNorm, OperatorKind::kGelu, OperatorKind::kSwiGlu};
  const int64_t n = job.tokens();
  for (int s = 0; s < job.stages(); ++s) {
    const StageLayout layout = LayoutStage(job, s);
    std::vector<std::pair<int64_t, int64_t>> stash, work;
    const auto add = [&](const Spot& spot, int64_t numbers) {
      if (spot.area == Area::kStash) stash.emplace_back(spot.offset, 4 * numbers);
      if (spot.area == Area::kWork) work.emplace_back(spot.offset, 4 * numbers);
    };
    std::set<int64_t> flows;  // in work
    const auto add_gradient = [&](const Spot& spot) {
      const bool is_new = spot.area != Area::kWork || flows.insert(spot.offset).second;
      if (is_new) add(spot, n * model.hidden_size);
    };
    int64_t before = model.hidden_size;  // floats per token in the previous operator's output
    for (const StageOperator& placed : layout.operators) {
      const StageOperator::Forward& forward = placed.of(Keep::kStash);
      const StageOperator::Backward& backward = placed.of(Halves::kApart);
      const OperatorKind kind = placed.op.kind;
      // A Linear that adds the stream has the output of the Residual after it.
      if ((!forward.stream || kind == OperatorKind::kResidual) && kind != OperatorKind::kRope)
        add(forward.out, n * placed.op.out);
      const auto parameters = static_cast<int64_t>(placed.op.parameters.size());
      add(forward.statistics,
          n * (kind == OperatorKind::kAttention  ? placed.op.heads
               : kind == OperatorKind::kHeadNorm ? placed.op.heads + placed.op.kv_heads
                                                 : parameters));
      const bool in_place = backward.d_in == backward.d_out || kind == OperatorKind::kLoss;
      if (kind == OperatorKind::kNorm) {
        add_gradient(backward.d_in);
      } else if (!in_place) {
        add(backward.d_in, n * before);
      }
      add(backward.part,
          parameters * (kind == OperatorKind::kHeadNorm ? placed.op.head_dim : model.hidden_size));
      before = placed.op.out;
    }
    add_gradient(layout.d_stream[static_cast<int>(Halves::kApart)]);
    INFO("stage " << s);
    CheckPlaces(stash, layout.stash_bytes);
    CheckPlaces(work, layout.work_bytes);
  }
}

TEST_CASE("a matrix with one row is a matrix") {
  ModelConfig model = Gpt2();
  model.intermediate_size = model.max_positions = 1;
  for (const Tensor& tensor : LayoutStage({model, 1, 1, {12}}, 0).tensors) {
    INFO(tensor.name());
    const bool norm = tensor.name().find("ln_") != std::string::npos;
    CHECK(tensor.matrix == (!norm && tensor.name().ends_with(".weight")));
    if (tensor.name() == "transformer.wpe.weight" ||
        tensor.name() == "transformer.h.3.mlp.c_proj.weight")
      CHECK(tensor.rows == 1);
  }
}

TEST_CASE("peers have room for whole sixteens of tokens") {
  CHECK(PartOf({.size = 50257, .multiple = 16}, 1) == 50272);
  CHECK(PartOf({.size = 50257, .multiple = 16}, 2) == 25136);
  CHECK(PartOf({.size = 17, .multiple = 16}, 4) == 16);  // two of them have no token
  CHECK(PartOf({.size = 3072}, 4) == 768);
}

// What is cut of a layer is exactly half; the rest is whole.
TEST_CASE("two peers have halves") {
  for (const ModelConfig& model : {Gpt2(), Llama()}) {
    ModelConfig even = model;
    if (even.family == FindFamily("llama")) even.heads = 8, even.kv_heads = 2;
    const StageLayout whole = LayoutStage({even, 2, 16, {6, 6}}, 0);
    Job job = {even, 2, 16, {6, 6}, 2};
    REQUIRE(CheckJob(job).ok());
    const StageLayout half = LayoutStage(job, 0);
    REQUIRE(half.tensors.size() == whole.tensors.size());
    int64_t cut = 0;
    for (size_t i = 0; i < whole.tensors.size(); ++i) {
      const Tensor &one = whole.tensors[i], &part = half.tensors[i];
      INFO(one.name());
      const bool vocabulary =
          one.name().ends_with("wte.weight") || one.name().ends_with("tokens.weight");
      const bool is_cut = part.cut != Cut::kNone;
      cut += is_cut;
      const int64_t tokens = model.vocab_size;
      if (vocabulary) {
        CHECK(part.rows == ((tokens + 1) / 2 + 15) / 16 * 16);
      } else {
        CHECK(part.bytes() * (is_cut ? 2 : 1) == one.bytes());
      }
      // Both peers together have every element of the whole once, or, if it is not cut, twice.
      const int64_t elements = vocabulary ? tokens * one.cols : one.elements();
      std::vector<int> times(elements);
      for (const int index : {0, 1})
        for (const Slice& slice : SlicesOf(part, {index, 2})) {
          CHECK(slice.at + (slice.rows - 1) * part.cols + slice.cols <= part.elements());
          for (int64_t row = 0; row < slice.rows; ++row)
            for (int64_t col = 0; col < slice.cols; ++col)
              ++times[slice.element + row * slice.row_elements + col];
        }
      CHECK(times == std::vector<int>(elements, is_cut ? 1 : 2));
    }
    CHECK(cut == 1 + 6 * (even.family == FindFamily("gpt2") ? 6 : 4));
    for (size_t i = 0; i < whole.operators.size(); ++i)
      if (whole.operators[i].op.cut == Cut::kOut && whole.operators[i].op.out > 0 && i > 0)
        CHECK(2 * half.operators[i].op.out == whole.operators[i].op.out);
    // With sequence parallelism also the stream: all that is saved, and that is passed on.
    CHECK(2 * half.stash_bytes > whole.stash_bytes);
    CHECK(half.act_bytes == whole.act_bytes);
    job.sequence_parallel = true;
    REQUIRE(CheckJob(job).ok());
    const StageLayout share = LayoutStage(job, 0);
    CHECK(2 * share.stash_bytes == whole.stash_bytes);
    CHECK(2 * share.act_bytes == whole.act_bytes);
    CHECK(2 * share.grad_bytes == whole.grad_bytes);
    CHECK(share.weights_bytes == half.weights_bytes);
  }
}

// A query's own key counts as half a pair, so that without a window half of all are seen.
TEST_CASE("attention multiplies the pairs of a query and a key that it sees") {
  for (const int tokens : {1, 2, 7, 64}) {
    const double all = MultiplyAdds(Attention({.heads = 3, .kv_heads = 1, .head_dim = 4}), tokens);
    CHECK(all == 12 * tokens);
    for (int window = 1; window <= tokens + 2; ++window) {
      INFO("a window of " << window << " in " << tokens << " tokens");
      const Operator op = Attention({.heads = 3, .kv_heads = 1, .head_dim = 4, .window = window});
      const int most = std::min(window, tokens);
      CHECK(MostKeys(op, tokens) == most);
      double pairs = -0.5 * most;
      for (int t = 0; t < tokens; ++t) pairs += std::min(t + 1, most);
      CHECK(tokens * MultiplyAdds(op, tokens) == Approx(2 * 12 * pairs));
      if (window >= tokens) CHECK(MultiplyAdds(op, tokens) == all);
    }
  }
}

TEST_CASE("the operations of GPT-2 124M") {
  const double c = 768, t = 1024, n = 2 * t;
  Job job = {Gpt2(), 2, 1024, {12}};
  const auto of = [&] { return WorkOf(LayoutStage(job, 0), job); };
  StageWork work = of();
  const double linear = 2 * n * (12 * 12 * c * c + 50272 * c);
  const double attention = 2 * n * 12 * c * t;  // two products with half of the keys
  CHECK(work.forward.operations == linear + attention);
  CHECK(work.input.operations == linear + 2.5 * attention);
  CHECK(work.weight.operations == linear);
  // RE recomputes all of the stash.
  CHECK(work.recompute.operations == work.forward.operations);
  job.recompute = {OperatorKind::kAttention};
  CHECK(of().recompute.operations == attention);
  job.recompute = {OperatorKind::kNorm};
  CHECK(of().recompute.operations == 0);
  // At least its weights and its output go through memory.
  CHECK(work.forward.bytes > 4 * (12 * 12 * c * c + 50257 * c + n * 50257));
  job.tp = 2;
  StageWork half = of();
  CHECK(half.forward.operations == Approx(work.forward.operations / 2).epsilon(1e-4));
  job.sequence_parallel = true;
  CHECK(of().forward.operations == half.forward.operations);
  CHECK(of().forward.bytes < half.forward.bytes);
}

TEST_CASE("an untied head is a tensor of its own") {
  ModelConfig model = Gpt2();
  model.tied = false;
  const StageLayout layout = LayoutStage({model, 1, 8, {12}}, 0);
  CHECK(layout.tensors.back().name() == "lm_head.weight");
  CHECK(layout.parameters == 124439808 + 50257 * 768);
  CHECK(layout.tied_bytes == 0);
}

}  // namespace
}  // namespace pp
