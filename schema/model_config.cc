// Reading and checking what others wrote; model.cc has the layout.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "schema/model.h"

namespace pp {
namespace {

// Beyond these a number is a mistake, and products of a few of them still fit 64 bits.
constexpr int kMaxVocabulary = 1 << 24;
constexpr int kMaxWidth = 1 << 18;
constexpr int kMaxLayers = 1 << 16;
constexpr int kMaxPositions = 1 << 24;
constexpr int kMaxMicroBatch = 1 << 20;
constexpr int64_t kMaxTokens = int64_t{1} << 26;
constexpr double kMaxBytes = 1e16;  // of one copy of the model with one micro-batch

// Reads the members of one JSON object; keeps the first error.
class Reader {
 public:
  Reader(const nlohmann::json& object, const std::string& file) : object_(object), file_(file) {}

  void Int(const char* key, int limit, int* out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Fail("{} is missing (a number from 1 to {})", key, limit);
    if (!value->is_number_integer() || !InRange(*value, limit)) {
      return Fail("{} is {} (a whole number from 1 to {})", key, Short(*value), limit);
    }
    *out = value->get<int>();
  }

  void OptionalFloat(const char* key, double low, double high, float* out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_number() || value->get<double>() < low || !(value->get<double>() < high)) {
      return Fail("{} is {} (a number of at least {} and less than {})", key, Short(*value), low,
                  high);
    }
    *out = value->get<float>();
  }

  void OptionalBool(const char* key, bool* out) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return;
    if (!value->is_boolean()) return Fail("{} is {} (true or false)", key, Short(*value));
    *out = value->get<bool>();
  }

  // A member that must be one of these texts.
  void Text(const char* key, std::initializer_list<std::string_view> allowed, const char* right) {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return Fail("{} is missing ({})", key, right);
    if (!value->is_string() ||
        std::find(allowed.begin(), allowed.end(), value->get<std::string>()) == allowed.end()) {
      Fail("{} is {} ({})", key, Short(*value), right);
    }
  }

  // A switch of the model that we know in one position only.
  void Only(const char* key, bool supported) {
    bool value = supported;
    OptionalBool(key, &value);
    if (value != supported) Fail("{} is {} (only {} is supported)", key, value, supported);
  }

  // Null where the key is absent or null.
  const nlohmann::json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  const Status& status() const { return status_; }

 private:
  static bool InRange(const nlohmann::json& value, int limit) {
    if (value.is_number_unsigned()) {
      return value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= static_cast<uint64_t>(limit);
    }
    return value.get<int64_t>() >= 1 && value.get<int64_t>() <= limit;
  }

  static std::string Short(const nlohmann::json& value) {
    std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return text.size() <= 40 ? text : text.substr(0, 37) + "...";
  }

  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (!status_.ok()) return;
    status_ = Status::Invalid(file_ + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  const nlohmann::json& object_;
  const std::string& file_;
  Status status_;
};

Status CheckRange(const std::string& file, const char* key, int value, int limit) {
  if (value >= 1 && value <= limit) return {};
  return Status::Invalid(
      fmt::format("{}: {} is {} (a whole number from 1 to {})", file, key, value, limit));
}

Status CheckProbability(const std::string& file, const char* key, float value) {
  if (value >= 0 && value < 1) return {};
  return Status::Invalid(
      fmt::format("{}: {} is {} (a number of at least 0 and less than 1)", file, key, value));
}

// The divisors of a number, for an error text.
std::string Divisors(int number) {
  std::string text;
  for (int d = 1; d <= number; ++d) {
    if (number % d == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", d);
  }
  return text;
}

// About as many bytes as all values of a micro-batch, the weights, their gradients and moments
// take together; as a double, which does not overflow.
double EstimateBytes(const Job& job) {
  const ModelConfig& m = job.model;
  const double layers = m.n_layer, c = m.n_embd, inner = m.n_inner, vocabulary = m.vocab_size;
  const double values = layers * (20 * c + 4 * inner + m.n_head) + 8 * c + vocabulary;
  const double weights =
      layers * (4 * c * c + 2 * c * inner) + (2 * vocabulary + m.n_positions) * c;
  return 4 * (values * static_cast<double>(job.tokens()) + 4 * weights);
}

}  // namespace

Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file) {
  const nlohmann::json root = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return Status::Invalid(file + ": not a JSON object (a Hugging Face config.json of GPT-2)");
  }
  ModelConfig config;
  Reader reader(root, file);
  reader.Text("model_type", {"gpt2"}, "\"gpt2\" is supported");
  reader.Int("vocab_size", kMaxVocabulary, &config.vocab_size);
  reader.Int("n_positions", kMaxPositions, &config.n_positions);
  reader.Int("n_embd", kMaxWidth, &config.n_embd);
  reader.Int("n_layer", kMaxLayers, &config.n_layer);
  reader.Int("n_head", kMaxWidth, &config.n_head);
  config.n_inner = 4 * config.n_embd;
  if (reader.Find("n_inner") != nullptr) reader.Int("n_inner", 4 * kMaxWidth, &config.n_inner);
  if (reader.Find("activation_function") != nullptr) {
    reader.Text("activation_function", {"gelu_new", "gelu_pytorch_tanh"},
                "gelu_new or gelu_pytorch_tanh, which are the same");
  }
  reader.OptionalFloat("layer_norm_epsilon", 1e-12, 1, &config.layer_norm_epsilon);
  reader.OptionalFloat("embd_pdrop", 0, 1, &config.embd_pdrop);
  reader.OptionalFloat("attn_pdrop", 0, 1, &config.attn_pdrop);
  reader.OptionalFloat("resid_pdrop", 0, 1, &config.resid_pdrop);
  reader.OptionalFloat("initializer_range", 0, 100, &config.initializer_range);
  reader.OptionalBool("tie_word_embeddings", &config.tie_word_embeddings);
  reader.Only("scale_attn_weights", true);
  reader.Only("scale_attn_by_inverse_layer_idx", false);
  reader.Only("add_cross_attention", false);
  PP_RETURN_IF_ERROR(reader.status());
  PP_RETURN_IF_ERROR(CheckModelConfig(config, file));
  return config;
}

std::string ToJson(const ModelConfig& c) {
  // {fmt} prints the shortest decimals that read back as the same float.
  return fmt::format(
      R"({{"model_type":"gpt2","vocab_size":{},"n_positions":{},"n_embd":{},"n_layer":{},"n_head":{},)"
      R"("n_inner":{},"activation_function":"gelu_new","layer_norm_epsilon":{},"embd_pdrop":{},)"
      R"("attn_pdrop":{},"resid_pdrop":{},"initializer_range":{},"tie_word_embeddings":{}}})",
      c.vocab_size, c.n_positions, c.n_embd, c.n_layer, c.n_head, c.n_inner, c.layer_norm_epsilon,
      c.embd_pdrop, c.attn_pdrop, c.resid_pdrop, c.initializer_range, c.tie_word_embeddings);
}

Result<ModelConfig> LoadModelConfig(const std::string& path) {
  std::error_code ignored;
  const auto type = std::filesystem::status(path, ignored).type();
  const bool endless = type == std::filesystem::file_type::character;
  std::ifstream stream(path, std::ios::binary);
  std::string text;
  if (type != std::filesystem::file_type::directory && !endless && stream.is_open())
    text.assign(std::istreambuf_iterator<char>(stream), {});
  if (stream.bad() || text.empty()) {
    return Status::Invalid(path + ": cannot be read (a Hugging Face config.json of GPT-2)");
  }
  return ParseModelConfig(text, path);
}

Status CheckModelConfig(const ModelConfig& config, const std::string& file) {
  PP_RETURN_IF_ERROR(CheckRange(file, "vocab_size", config.vocab_size, kMaxVocabulary));
  PP_RETURN_IF_ERROR(CheckRange(file, "n_positions", config.n_positions, kMaxPositions));
  PP_RETURN_IF_ERROR(CheckRange(file, "n_embd", config.n_embd, kMaxWidth));
  PP_RETURN_IF_ERROR(CheckRange(file, "n_layer", config.n_layer, kMaxLayers));
  PP_RETURN_IF_ERROR(CheckRange(file, "n_head", config.n_head, kMaxWidth));
  PP_RETURN_IF_ERROR(CheckRange(file, "n_inner", config.n_inner, 4 * kMaxWidth));
  if (config.n_embd % config.n_head != 0) {
    return Status::Invalid(
        fmt::format("{}: n_embd is {}, which n_head {} does not divide ({} would)", file,
                    config.n_embd, config.n_head, Divisors(config.n_embd)));
  }
  if (!(config.layer_norm_epsilon >= 1e-12f && config.layer_norm_epsilon < 1)) {
    return Status::Invalid(
        fmt::format("{}: layer_norm_epsilon is {} (a number of at least 1e-12 and less than 1)",
                    file, config.layer_norm_epsilon));
  }
  if (!(config.initializer_range >= 0 && config.initializer_range < 100)) {
    return Status::Invalid(fmt::format("{}: initializer_range is {} (a number from 0 to 100)", file,
                                       config.initializer_range));
  }
  PP_RETURN_IF_ERROR(CheckProbability(file, "embd_pdrop", config.embd_pdrop));
  PP_RETURN_IF_ERROR(CheckProbability(file, "attn_pdrop", config.attn_pdrop));
  return CheckProbability(file, "resid_pdrop", config.resid_pdrop);
}

Result<std::vector<int>> SplitLayers(int layers, int stages) {
  if (stages < 1 || layers % stages != 0) {
    return Status::Invalid(
        fmt::format("{} layers do not divide into {} stages ({} would; or --layers-per-stage)",
                    layers, stages, Divisors(layers)));
  }
  return std::vector<int>(stages, layers / stages);
}

Status CheckSplit(const std::vector<int>& split, int layers, int stages) {
  if (static_cast<int64_t>(split.size()) != stages) {
    return Status::Invalid(
        fmt::format("{} numbers of layers for {} stages (one a stage)", split.size(), stages));
  }
  int64_t sum = 0;
  for (size_t s = 0; s < split.size(); ++s) {
    if (split[s] < 0) {
      return Status::Invalid(fmt::format("{} layers for stage {} (0 or more)", split[s], s));
    }
    sum += split[s];
  }
  if (sum != layers) {
    return Status::Invalid(
        fmt::format("the stages have {} layers together (the model has {})", sum, layers));
  }
  return {};
}

Status CheckJob(const Job& job) {
  PP_RETURN_IF_ERROR(CheckModelConfig(job.model, "model"));
  if (job.micro_batch_size < 1 || job.micro_batch_size > kMaxMicroBatch) {
    return Status::Invalid(fmt::format("--micro-batch-size: is {} (a whole number from 1 to {})",
                                       job.micro_batch_size, kMaxMicroBatch));
  }
  if (job.sequence_length < 1 || job.sequence_length > job.model.n_positions) {
    return Status::Invalid(fmt::format("--seq-length: is {} (1 to n_positions of the model, {})",
                                       job.sequence_length, job.model.n_positions));
  }
  if (job.tokens() > kMaxTokens) {
    return Status::Invalid(fmt::format(
        "--micro-batch-size: {} sequences of {} tokens are {} in one micro-batch (at most {})",
        job.micro_batch_size, job.sequence_length, job.tokens(), kMaxTokens));
  }
  if (const double bytes = EstimateBytes(job); bytes > kMaxBytes) {
    return Status::Invalid(fmt::format(
        "model: its weights and one micro-batch take about {:.1e} bytes (at most {:.0e})", bytes,
        kMaxBytes));
  }
  return CheckSplit(job.layers_per_stage, job.model.n_layer, std::max(1, job.stages()))
      .In("--layers-per-stage");
}

}  // namespace pp
