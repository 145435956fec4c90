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

namespace pp {
namespace {

using Json = nlohmann::json;

std::string FamilyNames() {
  std::string names;
  for (const ModelFamily& family : Families())
    names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", family.model_type);
  return names;
}

std::string Short(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6;
constexpr int64_t kMostBytes = 16 << 20;

// Reads the members of one JSON object; keeps the first error.
class KeyReader : public ConfigKeys {
 public:
  KeyReader(const Json& object, const std::string& file) : object_(object), file_(file) {}

  void Int(const char* key, int limit, int* value) override {
    if (Find(key) == nullptr) return Fail("{} is missing (a number from 1 to {})", key, limit);
    Int(key, limit, value, 0);
  }

  void Int(const char* key, int limit, int* value, int64_t fallback) override {
    *value = static_cast<int>(fallback);
    const Json* found = Find(key);
    if (found == nullptr) return;
    const bool right =
        found->is_number_unsigned()
            ? found->get<uint64_t>() >= 1 && found->get<uint64_t>() <= static_cast<uint64_t>(limit)
            : found->is_number_integer() && found->get<int64_t>() >= 1 &&
                  found->get<int64_t>() <= limit;
    if (!right) return Fail("{} is {} (a whole number from 1 to {})", key, Short(*found), limit);
    *value = found->get<int>();
  }

  void Float(const char* key, double low, double high, float* value, float fallback) override {
    *value = fallback;
    const Json* found = Find(key);
    if (found == nullptr) return;
    // A value just below `high` may round to it.
    if (!found->is_number() || found->get<float>() < static_cast<float>(low) ||
        !(found->get<double>() < high) || !(found->get<float>() < static_cast<float>(high)))
      return Fail("{} is {} (a number of at least {} and less than {})", key, Short(*found), low,
                  high);
    *value = found->get<float>();
  }

  void Training(const char* key, double low, double high, float* value, float fallback) override {
    Float(key, low, high, value, fallback);
  }

  void Bool(const char* key, bool* value, bool fallback) override {
    *value = fallback;
    const Json* found = Find(key);
    if (found == nullptr) return;
    if (!found->is_boolean()) return Fail("{} is {} (true or false)", key, Short(*found));
    *value = found->get<bool>();
  }

  void Only(const char* key, bool supported) override {
    bool value = supported;
    Bool(key, &value, supported);
    if (value != supported) Fail("{} is {} (only {} is supported)", key, value, supported);
  }

  void Word(const char* key, std::initializer_list<const char*> words) override {
    const Json* found = Find(key);
    if (found == nullptr) return;
    std::string right;
    for (const char* word : words) {
      if (*found == word) return;
      right += fmt::format("{}{}", right.empty() ? "" : " or ", word);
    }
    Fail("{} is {} ({}{})", key, Short(*found), right,
         words.size() > 1 ? ", which are the same" : "");
  }

  // transformers 5 writes rope_parameters, with everything in it; earlier versions wrote rope_theta
  // and, next to it, rope_scaling.
  void Rope(RopeConfig* rope) override {
    *rope = {};
    Float("rope_theta", 1, kMaxTheta, &rope->theta, rope->theta);
    const char* key = Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
    const Json* found = Find(key);
    if (found == nullptr) return;
    if (!found->is_object()) return Fail("{} is {} (an object, or null)", key, Short(*found));
    const std::string inside = file_ + ": " + key;
    KeyReader reader(*found, inside);
    reader.Float("rope_theta", 1, kMaxTheta, &rope->theta, rope->theta);
    const Json* type = reader.Find("rope_type");
    if (type == nullptr) type = reader.Find("type");
    const bool scaled = type != nullptr && *type == "llama3";
    if (scaled) {
      reader.Require(reader.Find("factor") != nullptr, "factor is missing (at least 1)");
      reader.Float("factor", 1, kMaxFactor, &rope->factor, 1);
      reader.Float("low_freq_factor", 1e-6, kMaxFactor, &rope->low_factor, rope->low_factor);
      reader.Float("high_freq_factor", 1e-6, kMaxFactor, &rope->high_factor, rope->high_factor);
      reader.Int("original_max_position_embeddings", kMaxPositions, &rope->original_positions);
      reader.Require(rope->low_factor < rope->high_factor,
                     fmt::format("low_freq_factor is {} (less than high_freq_factor, {})",
                                 rope->low_factor, rope->high_factor));
    }
    reader.Require(scaled || type == nullptr || *type == "default",
                   fmt::format("rope_type is {} (\"default\" or \"llama3\")",
                               type == nullptr ? "" : Short(*type)));
    if (status_.ok()) status_ = reader.status();
  }

  void Divides(const char* key, int value, const char* divisor_key, int divisor) override {
    if (divisor < 1 || value % divisor == 0) return;
    Fail("{} is {}, which {} {} does not divide ({} would)", key, value, divisor_key, divisor,
         Divisors(value));
  }

  void Require(bool holds, const std::string& error) override {
    if (!holds) Fail("{}", error);
  }

  // Null if the key is absent or null.
  const Json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const Status& status() const { return status_; }

 private:
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_.ok()) return;
    status_ = Status::Invalid(file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  const Json& object_;
  const std::string& file_;
  Status status_;
};

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
  void Float(const char* key, double, double, float* value, float) override {
    Add(key, fmt::to_string(*value));
  }
  void Training(const char* key, double, double, float* value, float) override {
    Add(key, fmt::to_string(*value));
    members_.back().training = true;
  }
  void Bool(const char* key, bool* value, bool) override { Add(key, fmt::to_string(*value)); }
  void Only(const char*, bool) override {}
  void Word(const char* key, std::initializer_list<const char*> words) override {
    Add(key, fmt::format("\"{}\"", *words.begin()));
  }
  void Rope(RopeConfig* rope) override {
    Add("rope_theta", fmt::to_string(rope->theta));
    if (rope->factor == 0) return;
    Add("rope_scaling",
        fmt::format(R"({{"rope_type":"llama3","factor":{},"low_freq_factor":{},)"
                    R"("high_freq_factor":{},"original_max_position_embeddings":{}}})",
                    rope->factor, rope->low_factor, rope->high_factor, rope->original_positions));
  }
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

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file) {
  const Result<Json> parsed = ParseJson(text);
  PP_RETURN_IF_ERROR(parsed.status().In(file));
  const Json& root = *parsed;
  if (!root.is_object())
    return Status::Invalid(file + ": not a JSON object (a Hugging Face config.json)");
  ModelConfig config;
  KeyReader reader(root, file);
  const Json* type = reader.Find("model_type");
  if (type != nullptr && type->is_string()) config.family = FindFamily(type->get<std::string>());
  if (config.family == nullptr)
    return Status::Invalid(fmt::format("{}: model_type is {} ({})", file,
                                       type == nullptr ? "missing" : Short(*type), FamilyNames()));
  config.family->keys(reader, config);
  PP_RETURN_IF_ERROR(reader.status());
  return config;
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

Result<ModelConfig> LoadModelConfig(const std::string& given) {
  const std::string path = ModelConfigPath(given);
  const Result<std::string> text = ReadText(path, "a Hugging Face config.json", kMostBytes);
  PP_RETURN_IF_ERROR(text.status());
  return ParseModelConfig(*text, path);
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
