// Reading and writing config.json: the families define the meaning of the keys (families.h).
#include "schema/model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "schema/base/json.h"
#include "schema/base/text_source.h"
#include "schema/model/families.h"
#include "schema/model/ignored_keys.h"
#include "schema/model/key_reader.h"

namespace pp {
namespace {

using Json = nlohmann::json;

std::string FamilyNames() {
  std::string names;
  for (const ModelFamily& family : Families())
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", family.model_type);
  return names;
}

constexpr int64_t kMostBytes = 16 << 20;

// Lists the members as they are written, in the shortest decimals that read back as the same float.
class KeyWriter : public ConfigKeys {
 public:
  struct Member {
    std::string key, value;
    bool training = false;
  };

  explicit KeyWriter(ModelConfig config) {
    Add("model_type", fmt::format("\"{}\"", config.family->model_type));
    config.family->keys(*this, config);
  }

  void Int(const char* key, int, int* value) override { Add(key, fmt::to_string(*value)); }
  void Int(const char* key, int, int* value, int64_t) override { Add(key, fmt::to_string(*value)); }
  void Int(const char* key, int, int* value, int64_t, int64_t) override {
    Add(key, fmt::to_string(*value));
  }
  void Float(const char* key, double, double, float* value, float) override {
    Add(key, fmt::to_string(*value));
  }
  void Training(const char* key, double, double, float* value, float) override {
    Add(key, fmt::to_string(*value));
    members_.back().training = true;
  }
  void Bool(const char* key, bool* value, bool) override { Add(key, fmt::to_string(*value)); }
  void Only(const char*, bool) override {}
  int Word(const char* key, std::initializer_list<Words> meanings, int meaning) override {
    Add(key, fmt::format("\"{}\"", *meanings.begin()[meaning].begin()));
    return meaning;
  }
  void Rope(RopeConfig* rope, int) override {
    Add("rope_theta", fmt::to_string(rope->theta));
    std::string scaling;
    const auto add = [&](const char* key, const auto& value) {
      scaling += fmt::format(",\"{}\":{}", key, value);
    };
    if (rope->scaling == RopeScaling::kNone) return;
    add("factor", rope->factor);
    if (rope->scaling != RopeScaling::kLinear)
      add("original_max_position_embeddings", rope->original_positions);
    if (rope->scaling == RopeScaling::kLlama3) {
      add("low_freq_factor", rope->low_factor);
      add("high_freq_factor", rope->high_factor);
    }
    if (rope->scaling == RopeScaling::kYarn) {
      add("beta_fast", rope->beta_fast);
      add("beta_slow", rope->beta_slow);
      add("attention_factor", rope->attention_factor);
      add("truncate", rope->truncate);
    }
    constexpr const char* kTypes[] = {"default", "linear", "llama3", "yarn"};
    Add("rope_scaling", fmt::format("{{\"rope_type\":\"{}\"{}}}",
                                    kTypes[static_cast<int>(rope->scaling)], scaling));
  }
  void Window(int* window, int) override {
    Add("sliding_window", *window > 0 ? fmt::to_string(*window) : "null");
  }
  void WindowOfLayers(int* window, int absent, int) override {
    Add("use_sliding_window", *window > 0 ? "true" : "false");
    if (*window == 0) return;
    Window(window, absent);
    Add("max_window_layers", "0");
  }
  void Ignored(Words) override {}
  void Divides(const char*, int, const char*, int) override {}
  void Require(bool, const std::string&) override {}

  const std::vector<Member>& members() const { return members_; }

 private:
  void Add(const std::string& key, const std::string& value) { members_.push_back({key, value}); }

  std::vector<Member> members_;
};

}  // namespace

std::string Divisors(int number) {
  std::string text;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  }
  return text;
}

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file,
                                     std::vector<std::string>* unknown) {
  const Result<Json> parsed = ParseJson(text);
  PP_RETURN_IF_ERROR(parsed.status().In(file));
  const Json& root = *parsed;
  if (!root.is_object())
    return Status::Invalid(file + ": not a JSON object (a Hugging Face config.json)");
  ModelConfig config;
  const auto type = root.find("model_type");
  if (type != root.end() && type->is_string()) config.family = FindFamily(type->get<std::string>());
  if (config.family == nullptr)
    return Status::Invalid(fmt::format("{}: model_type is {} ({})", file,
                                       type == root.end() ? "missing" : ShortJson(*type),
                                       FamilyNames()));
  KeyReader reader(root, file, config.family->aliases);
  reader.Find("model_type");
  config.family->keys(reader, config);
  reader.Only("is_causal", true);
  reader.Only("is_encoder_decoder", false);
  reader.Only("add_cross_attention", false);
  reader.SameLayers(config.layers, config.sliding_window);
  PP_RETURN_IF_ERROR(reader.status());
  if (unknown == nullptr) return config;
  reader.ListUnknown("", unknown);
  std::erase_if(*unknown, [](const std::string& key) {
    return std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) !=
           std::end(kIgnoredKeys);
  });
  return config;
}

std::string UnknownKeysNote(const std::string& given, const std::vector<std::string>& unknown) {
  return fmt::format("{}: not known, and not used: {}", Shown(ModelConfigPath(given)),
                     Shown(fmt::to_string(fmt::join(unknown, ", "))));
}

std::string ToJson(const ModelConfig& config) {
  const KeyWriter writer(config);
  std::string text;
  for (const KeyWriter::Member& member : writer.members())
    text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", member.key, member.value);
  return text + "}";
}

std::string ToConfigJson(const ModelConfig& config) {
  return fmt::format(R"({{"architectures":["{}"],"torch_dtype":"float32",{})",
                     config.family->architecture, ToJson(config).substr(1));
}

std::string ModelConfigPath(const std::string& given) {
  std::error_code ignored;
  const std::string inside = given + "/config.json";
  return std::filesystem::exists(inside, ignored) ? inside : given;
}

Result<ModelConfig> LoadModelConfig(const std::string& given, std::vector<std::string>* unknown) {
  const std::string path = ModelConfigPath(given);
  const Result<std::string> text = ReadText(path, "a Hugging Face config.json", kMostBytes);
  PP_RETURN_IF_ERROR(text.status());
  return ParseModelConfig(*text, path, unknown);
}

Status CheckModelConfig(const ModelConfig& config, const std::string& file) {
  if (config.family == nullptr) return Status::Invalid(file + ": of no family");
  const Json written = Json::parse(ToJson(config), nullptr, /*allow_exceptions=*/false);
  ModelConfig read = config;
  KeyReader reader(written, file);
  if (written.is_object()) config.family->keys(reader, read);
  PP_RETURN_IF_ERROR(reader.status());
  if (!written.is_object() || !(read == config))
    return Status::Invalid(file + ": numbers that no config.json has");
  return {};
}

Status CheckSameWeights(const ModelConfig& config, const std::string& file,
                        const ModelConfig& model) {
  const KeyWriter theirs(config), ours(model);
  const auto differs = [&](const std::string& key, const std::string& their_value,
                           const std::string& our_value) {
    return Status::Invalid(
        fmt::format("{}: {} is {} (the plan's model has {})", file, key, their_value, our_value));
  };
  for (size_t i = 0; i < std::max(theirs.members().size(), ours.members().size()); ++i) {
    const KeyWriter::Member none{"", "none"};
    const auto& their = i < theirs.members().size() ? theirs.members()[i] : none;
    const auto& our = i < ours.members().size() ? ours.members()[i] : none;
    if (their.training && our.training) continue;
    if (their.key != our.key || their.value != our.value)
      return differs(their.key.empty() ? our.key : their.key, their.value, our.value);
  }
  return {};
}

}  // namespace pp
