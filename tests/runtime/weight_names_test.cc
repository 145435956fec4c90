// Of each family, tied and not: whatever is done to one tensor of a file of weights, the model has
// its numbers, does not need it, or an error names it.
#include "runtime/model/weight_names.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "runtime/model/parameters.h"
#include "schema/model/families.h"
#include "tests/folder.h"
#include "tests/safetensors_file.h"

namespace pp {
namespace {

constexpr int kLayers = 2;

// With the keys of all families.
ModelConfig ModelOf(const ModelFamily& family, bool tied) {
  const Result<ModelConfig> model = ParseModelConfig(
      fmt::format(R"({{"model_type":"{}","vocab_size":13,"n_positions":8,"n_embd":8,"n_layer":{},)"
                  R"("n_head":2,"max_position_embeddings":8,"hidden_size":8,)"
                  R"("intermediate_size":12,"num_hidden_layers":{},"num_attention_heads":2,)"
                  R"("num_key_value_heads":1,"head_dim":4,"tie_word_embeddings":{}}})",
                  family.model_type, kLayers, kLayers, tied),
      "config.json");
  REQUIRE(model.status().message() == "");
  return *model;
}

std::vector<Tensor> TensorsOf(const ModelConfig& model) {
  return LayoutStage({.model = model, .sequence_length = 8, .layers_per_stage = {kLayers}}, 0)
      .tensors;
}

// All tensors of the model's files, each number of them another one, which bf16 has, too.
std::vector<FileTensor> Whole(const ModelConfig& model) {
  std::vector<FileTensor> all;
  int next = 0;
  for (const Tensor& tensor : TensorsOf(model))
    for (const Slice& slice : SlicesOf(tensor, {})) {
      if (!all.empty() && all.back().name == slice.name) continue;
      all.push_back({slice.name, slice.shape, {}});
      int64_t count = 1;
      for (const int64_t size : slice.shape) count *= size;
      for (int64_t i = 0; i < count; ++i)
        all.back().numbers.push_back(
            std::ldexp(static_cast<float>(128 + next % 128), next / 128 % 64 - 32)),
            ++next;
    }
  return all;
}

// A folder with these tensors, and what a run makes of it.
class Weights {
 public:
  explicit Weights(const ModelConfig& model) : model_(model) {}

  // Empty, or the error.
  std::string Error(const std::vector<FileTensor>& tensors,
                    UnusedWeights unused = UnusedWeights::kRefuse) {
    WriteSafetensors(folder_ / "model.safetensors", tensors);
    return Error(unused);
  }
  std::string Error(UnusedWeights unused = UnusedWeights::kRefuse) {
    notes_.clear();
    numbers_.clear();
    auto source = WeightSource::Open(folder_ / "", model_);
    if (!source.ok()) return source.status().message();
    const Status checked = source->CheckAllUsed(unused, &notes_);
    for (const Tensor& tensor : TensorsOf(model_)) {
      std::vector<float> numbers(tensor.elements());
      const Status read = source->Read(tensor, numbers.data());
      if (checked.ok()) REQUIRE(read.message() == "");
      numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
    }
    return checked.message();
  }

  const Folder& folder() const { return folder_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<float>& numbers() const { return numbers_; }  // of the model

 private:
  const ModelConfig& model_;
  const Folder folder_;
  std::vector<std::string> notes_;
  std::vector<float> numbers_;
};

// body(model, what files have) for each family, tied and not.
template <typename Body>
void ForModels(const Body& body) {
  for (const ModelFamily& family : Families())
    for (const bool tied : {true, false}) {
      INFO(family.model_type << (tied ? ", tied" : ""));
      const ModelConfig model = ModelOf(family, tied);
      body(model, Whole(model));
    }
}

TEST_CASE("each tensor that is removed or renamed is missing, and each number is read") {
  ForModels([](const ModelConfig& model, const std::vector<FileTensor>& whole) {
    Weights weights(model);
    REQUIRE(weights.Error(whole) == "");
    const std::vector<float> numbers = weights.numbers();
    const std::string prefix = TableOf(model).prefix;
    for (size_t t = 0; t < whole.size(); ++t) {
      INFO(whole[t].name);
      std::vector<FileTensor> others = whole;
      others[t].numbers.back() += 1;
      CHECK(weights.Error(others) == "");
      CHECK(weights.numbers() != numbers);
      others = whole;
      others[t].name += "s";
      CHECK_THAT(weights.Error(others), Catch::EndsWith("tensor " + whole[t].name + " is missing"));
      others.erase(others.begin() + static_cast<int64_t>(t));
      CHECK_THAT(weights.Error(others), Catch::EndsWith("tensor " + whole[t].name + " is missing"));
      if (!whole[t].name.starts_with(prefix)) continue;
      others = whole;
      others[t].name.erase(0, prefix.size());
      CHECK(weights.Error(others) == "");
      CHECK(weights.numbers() == numbers);
    }
  });
}

TEST_CASE("each tensor that the model does not have is named, and ignored if that is wanted") {
  ForModels([](const ModelConfig& model, const std::vector<FileTensor>& whole) {
    Weights weights(model);
    REQUIRE(weights.Error(whole) == "");
    const std::vector<float> numbers = weights.numbers();
    const std::string prefix = TableOf(model).prefix;
    const auto is_named = [&](const std::string& name) {
      for (const FileTensor& tensor : whole)
        if (tensor.name == name) return;
      INFO(name);
      std::vector<FileTensor> more = whole;
      more.push_back({name, {2, 3}, std::vector<float>(6)});
      CHECK_THAT(weights.Error(more),
                 Catch::EndsWith("tensor " + name +
                                 " is not one of the model's (--unused-weights "
                                 "ignore, if that is meant)"));
      CHECK(weights.Error(more, UnusedWeights::kIgnore) == "");
      REQUIRE(weights.notes().size() == 1);
      CHECK_THAT(weights.notes()[0],
                 Catch::EndsWith("tensor " + name + " is not one of the model's"));
      CHECK(weights.numbers() == numbers);
    };
    for (const FileTensor& tensor : whole) {
      const std::string stem = tensor.name.substr(0, tensor.name.find_last_of('.'));
      for (const char* end : {".bias", ".weight_scale", ".lora_A.weight", "_norm.weight"})
        is_named(stem + end);
      // Twice: with and without the prefix.
      if (tensor.name.starts_with(prefix)) is_named(tensor.name.substr(prefix.size()));
      // Of a layer more.
      if (const size_t at = tensor.name.find(".0."); at != std::string::npos)
        is_named(std::string(tensor.name).replace(at, 3, fmt::format(".{}.", kLayers)));
    }
    std::vector<FileTensor> more = whole;
    for (const char* name : {"b", "a", "c"}) more.push_back({name, {}, {1}});
    CHECK_THAT(weights.Error(more),
               Catch::Contains(": tensor a is not one of the model's, and 2 more tensors are not "
                               "used (--unused-weights"));
  });
}

TEST_CASE("what follows from the configuration is not needed") {
  ForModels([](const ModelConfig& model, const std::vector<FileTensor>& whole) {
    Weights weights(model);
    const bool gpt2 = model.family == FindFamily("gpt2");
    // Name within the model, and whether it is GPT-2's.
    const std::map<std::string, bool> needless = {{"h.1.attn.bias", true},
                                                  {"h.0.attn.masked_bias", true},
                                                  {"layers.1.self_attn.rotary_emb.inv_freq", false},
                                                  {"rotary_emb.inv_freq", false}};
    for (const auto& [name, is_gpt2s] : needless)
      for (const std::string& prefix : {std::string(), TableOf(model).prefix})
        // Of any type.
        for (const char* dtype : {"F32", "BF16", "C64", "F8_E8M0"}) {
          INFO(prefix << name);
          std::vector<FileTensor> more = whole;
          more.push_back({prefix + name, {4}, std::vector<float>(4), dtype});
          if (dtype == std::string("C64")) more.back().shape = {2};
          CHECK((weights.Error(more) == "") == (is_gpt2s == gpt2));
        }
  });
}

TEST_CASE("a tied head is the embedding, or named, and may stand alone") {
  ForModels([](const ModelConfig& model, const std::vector<FileTensor>& whole) {
    if (!model.tied) return;
    Weights weights(model);
    REQUIRE(weights.Error(whole) == "");
    const std::vector<float> numbers = weights.numbers();
    std::vector<FileTensor> both = whole;
    both.push_back(whole[0]);
    FileTensor& head = both.back();
    head.name = "lm_head.weight";
    CHECK(weights.Error(both) == "");
    head.dtype = "BF16";
    CHECK(weights.Error(both) == "");
    head.dtype = "F8_E8M0";
    CHECK_FALSE(weights.Error(both) == "");
    head.dtype = "F32";
    for (size_t i = 0; i < head.numbers.size(); i += 17) {
      head.numbers[i] += 1;
      CHECK_THAT(weights.Error(both),
                 Catch::Contains("tensor lm_head.weight differs from " + whole[0].name));
      CHECK(weights.Error(both, UnusedWeights::kIgnore) == "");
      CHECK(weights.numbers() == numbers);
      head.numbers[i] -= 1;
    }
    head.shape = {whole[0].shape[1], whole[0].shape[0]};
    CHECK_FALSE(weights.Error(both) == "");
    std::vector<FileTensor> alone = whole;
    alone[0].name = "lm_head.weight";
    CHECK(weights.Error(alone) == "");
    CHECK(weights.numbers() == numbers);
  });
}

TEST_CASE("an index is right about each tensor, or wrong, and its files say what there is") {
  ForModels([](const ModelConfig& model, const std::vector<FileTensor>& whole) {
    Weights weights(model);
    REQUIRE(weights.Error(whole) == "");
    const std::vector<float> numbers = weights.numbers();
    std::filesystem::remove(weights.folder() / "model.safetensors");
    const auto half = whole.begin() + static_cast<int64_t>(whole.size() / 2);
    const std::vector<FileTensor> shards[] = {{whole.begin(), half}, {half, whole.end()}};
    const auto write = [&](const std::map<std::string, std::string>& index) {
      std::ofstream out(weights.folder() / "model.safetensors.index.json");
      out << R"({"weight_map":{)";
      for (bool more = false; const auto& [name, file] : index)
        out << (std::exchange(more, true) ? ",\"" : "\"") << name << R"(":")" << file << '"';
      out << "}}";
    };
    std::map<std::string, std::string> right;
    for (const int shard : {0, 1}) {
      WriteSafetensors(weights.folder() / std::to_string(shard), shards[shard]);
      for (const FileTensor& tensor : shards[shard]) right[tensor.name] = std::to_string(shard);
    }
    const auto same = [&](const std::map<std::string, std::string>& index) {
      write(index);
      CHECK(weights.Error() == "");
      CHECK(weights.numbers() == numbers);
    };
    same(right);
    for (const auto& [name, shard] : right) {
      INFO(name);
      std::map<std::string, std::string> index = right;
      index[name] = shard == "0" ? "1" : "0";
      same(index);
      CHECK(weights.notes().empty());
      index.erase(name);
      same(index);
      CHECK(weights.notes().empty());
      index = right;
      index[name + "s"] = shard;
      same(index);
      REQUIRE(weights.notes().size() == 1);
      CHECK_THAT(weights.notes()[0],
                 Catch::Contains("tensor " + name + "s is in none of its files"));
    }
    std::map<std::string, std::string> index = right;
    index["model.layers.0.self_attn.rotary_emb.inv_freq"] = "0";
    index["transformer.h.0.attn.masked_bias"] = "0";
    same(index);
    CHECK(weights.notes().size() == 1);  // one of them is the other family's
    // In both files: the index's is read, but it is said.
    for (const FileTensor& tensor : shards[0]) {
      write(right);
      std::vector<FileTensor> second = shards[1];
      second.push_back(tensor);
      second.back().numbers[0] += 1;
      WriteSafetensors(weights.folder() / "1", second);
      CHECK_THAT(weights.Error(), Catch::Contains("tensor " + tensor.name + " is in two files"));
      CHECK(weights.Error(UnusedWeights::kIgnore) == "");
      CHECK(weights.numbers() == numbers);
    }
  });
}

}  // namespace
}  // namespace pp
