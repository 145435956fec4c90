#include "schema/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

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

// Hands out aligned places one after the other.
class Places {
 public:
  explicit Places(int64_t begin = 0) : end_(begin) {}

  // Room for `numbers` numbers of 4 bytes.
  int64_t Take(int64_t numbers) {
    const int64_t begin = (end_ + kAlign - 1) / kAlign * kAlign;
    end_ = begin + numbers * 4;
    return begin;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_;
};

// Adds the tensors of one stage, in model order.
class TensorList {
 public:
  TensorList(const ModelConfig& model, StageLayout* layout) : model_(model), layout_(*layout) {}

  void Embeddings() {
    const float std = model_.initializer_range;
    Add("wte.weight", 0, {model_.vocab_size, model_.n_embd}, 0, std);
    Add("wpe.weight", 1, {model_.n_positions, model_.n_embd}, 0, std);
  }

  void Layer(int layer) {
    const int64_t c = model_.n_embd, inner = model_.n_inner;
    const float std = model_.initializer_range;
    // As in GPT-2: the projections into the residual stream begin smaller, by their number.
    const float residual_std = std / std::sqrt(2.0f * static_cast<float>(model_.n_layer));
    const std::string h = fmt::format("h.{}.", layer);
    const int id = 2 + 12 * layer;
    Add(h + "ln_1.weight", id, {1, c}, 1, 0);
    Add(h + "ln_1.bias", id + 1, {1, c}, 0, 0);
    Add(h + "attn.c_attn.weight", id + 2, {c, 3 * c}, 0, std);
    Add(h + "attn.c_attn.bias", id + 3, {1, 3 * c}, 0, 0);
    Add(h + "attn.c_proj.weight", id + 4, {c, c}, 0, residual_std);
    Add(h + "attn.c_proj.bias", id + 5, {1, c}, 0, 0);
    Add(h + "ln_2.weight", id + 6, {1, c}, 1, 0);
    Add(h + "ln_2.bias", id + 7, {1, c}, 0, 0);
    Add(h + "mlp.c_fc.weight", id + 8, {c, inner}, 0, std);
    Add(h + "mlp.c_fc.bias", id + 9, {1, inner}, 0, 0);
    Add(h + "mlp.c_proj.weight", id + 10, {inner, c}, 0, residual_std);
    Add(h + "mlp.c_proj.bias", id + 11, {1, c}, 0, 0);
  }

  void Final() {
    const int id = 2 + 12 * model_.n_layer;
    Add("ln_f.weight", id, {1, model_.n_embd}, 1, 0);
    Add("ln_f.bias", id + 1, {1, model_.n_embd}, 0, 0);
    const Shape shape = {model_.vocab_size, model_.n_embd};
    if (!model_.tie_word_embeddings) {
      Add("lm_head.weight", id + 2, shape, 0, model_.initializer_range);
    } else if (!layout_.first) {
      Add("wte.weight", 0, shape, 0, model_.initializer_range);
      // The first stage counts it.
      Tensor& copy = layout_.tensors.back();
      layout_.norm_blocks -= copy.blocks;
      layout_.parameters -= copy.elements();
      copy.blocks = 0;
    }
  }

  // The two accumulators of tied embeddings, and the sizes.
  void Finish() {
    if (model_.tie_word_embeddings && (layout_.first || layout_.last)) {
      layout_.tied_bytes = int64_t{model_.vocab_size} * model_.n_embd * 4;
      if (layout_.first) layout_.tied_lookup = layout_.tensors.front().wgrad;
      if (layout_.last) {
        layout_.tied_head =
            layout_.first ? wgrad_.Take(layout_.tied_bytes / 4) : layout_.tensors.back().wgrad;
      }
    }
    layout_.weights_bytes = weights_.end();
    layout_.wgrad_bytes = wgrad_.end();
    Places optimizer(weights_.end());
    layout_.optimizer_v = weights_.end() == 0 ? 0 : optimizer.Take(0);
    layout_.optimizer_bytes = weights_.end() == 0 ? 0 : layout_.optimizer_v + layout_.weights_bytes;
  }

 private:
  struct Shape {
    int64_t rows, cols;
  };

  void Add(std::string name, int id, Shape shape, float mean, float std) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.rows = shape.rows;
    tensor.cols = shape.cols;
    tensor.id = id;
    tensor.decay = shape.rows > 1;
    tensor.init_mean = mean;
    tensor.init_std = std;
    tensor.weight = weights_.Take(tensor.elements());
    tensor.wgrad = wgrad_.Take(tensor.elements());
    tensor.first_block = layout_.norm_blocks;
    tensor.blocks = (tensor.elements() + kNormBlock - 1) / kNormBlock;
    layout_.norm_blocks += tensor.blocks;
    layout_.parameters += tensor.elements();
    layout_.tensors.push_back(std::move(tensor));
  }

  const ModelConfig& model_;
  StageLayout& layout_;
  Places weights_, wgrad_;
};

void LayoutTensors(const Job& job, StageLayout* layout) {
  TensorList list(job.model, layout);
  if (layout->first) list.Embeddings();
  for (int i = 0; i < layout->layers; ++i) list.Layer(layout->first_layer + i);
  if (layout->last) list.Final();
  list.Finish();
}

// Norm blocks of the stages before this one.
int64_t NormBlocksBefore(const Job& job, const StageLayout& layout) {
  if (layout.first) return 0;
  StageLayout embeddings, layer;
  embeddings.first = true;
  layer.layers = 1;
  LayoutTensors(job, &embeddings);
  LayoutTensors(job, &layer);
  return embeddings.norm_blocks + layout.first_layer * layer.norm_blocks;
}

// The parts of a layer's stash but x.
LayerStash TakeStash(const Job& job, Places* places) {
  const int64_t n = job.tokens(), c = job.model.n_embd;
  LayerStash stash;
  stash.mean1 = places->Take(n);
  stash.rstd1 = places->Take(n);
  stash.qkv = places->Take(n * 3 * c);
  stash.lse = places->Take(n * job.model.n_head);
  stash.context = places->Take(n * c);
  stash.middle = places->Take(n * c);
  stash.mean2 = places->Take(n);
  stash.rstd2 = places->Take(n);
  stash.hidden = places->Take(n * job.model.n_inner);
  return stash;
}

HeadStash TakeHead(const Job& job, int64_t logits_stride, Places* places) {
  const int64_t n = job.tokens();
  HeadStash head;
  head.mean = places->Take(n);
  head.rstd = places->Take(n);
  head.lse = places->Take(n);
  head.logits = places->Take(n * logits_stride);
  return head;
}

LayerWork TakeWork(const Job& job, Places* places) {
  const int64_t n = job.tokens(), c = job.model.n_embd;
  LayerWork work;
  work.d_mlp = places->Take(n * c);
  work.d_hidden = places->Take(n * job.model.n_inner);
  work.d_proj = places->Take(n * c);
  work.d_qkv = places->Take(n * 3 * c);
  work.d_norm = places->Take(4 * c);
  return work;
}

void LayoutStash(const Job& job, StageLayout* layout) {
  const int64_t nc = job.tokens() * job.model.n_embd;
  Places places;
  const bool embedded = layout->first && (layout->layers > 0 || layout->last);
  int64_t x = embedded ? places.Take(nc) : -1;
  for (int i = 0; i < layout->layers; ++i) {
    layout->stash.push_back(TakeStash(job, &places));
    layout->stash.back().x = x;
    const bool kept = i + 1 < layout->layers || layout->last;
    x = kept ? places.Take(nc) : -1;
  }
  if (layout->last) {
    layout->head_stash = TakeHead(job, layout->logits_stride, &places);
    layout->head_stash.x = x;
  }
  layout->stash_bytes = places.end();
}

void LayoutWork(const Job& job, StageLayout* layout) {
  Places places;
  for (int i = 0; i < layout->layers; ++i) layout->work.push_back(TakeWork(job, &places));
  if (layout->first) layout->work_embed = places.Take(job.tokens() * job.model.n_embd);
  if (layout->last) layout->work_final = places.Take(2 * job.model.n_embd);
  layout->work_bytes = places.end();
}

void LayoutScratch(const Job& job, StageLayout* layout) {
  const int64_t nc = job.tokens() * job.model.n_embd;
  Scratch& scratch = layout->scratch;
  Places common;
  scratch.normed = common.Take(nc);
  scratch.wide = common.Take(job.tokens() * job.model.n_inner);
  scratch.flow = common.Take(nc);

  Places backward(common.end());
  scratch.work = TakeWork(job, &backward);
  scratch.d_final = backward.Take(2 * job.model.n_embd);
  layout->scratch_bytes = backward.end();

  Places drop(common.end());
  scratch.stash = TakeStash(job, &drop);
  scratch.flow2 = drop.Take(nc);
  if (layout->last) scratch.head = TakeHead(job, layout->logits_stride, &drop);
  layout->drop_scratch_bytes = std::max(backward.end(), drop.end());
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
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad() || text.empty()) {
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
  if (!(config.layer_norm_epsilon > 0 && config.layer_norm_epsilon < 1)) {
    return Status::Invalid(fmt::format("{}: layer_norm_epsilon is {} (a number between 0 and 1)",
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

StageLayout LayoutStage(const Job& job, int stage) {
  PP_CHECK(stage >= 0 && stage < job.stages());
  StageLayout layout;
  layout.stage = stage;
  layout.first = stage == 0;
  layout.last = stage == job.stages() - 1;
  for (int s = 0; s < stage; ++s) layout.first_layer += job.layers_per_stage[s];
  layout.layers = job.layers_per_stage[stage];
  LayoutTensors(job, &layout);
  layout.first_norm_block = NormBlocksBefore(job, layout);

  const int64_t n = job.tokens();
  if (layout.first) layout.tokens_bytes = n * 4;
  if (layout.last) {
    layout.targets_bytes = n * 4;
    layout.loss_bytes = 8;
    layout.logits_stride = (job.model.vocab_size + 15) / 16 * 16;
  } else {
    layout.act_bytes = n * job.model.n_embd * 4;
    layout.grad_bytes = layout.act_bytes;
  }
  LayoutStash(job, &layout);
  LayoutWork(job, &layout);
  LayoutScratch(job, &layout);
  return layout;
}

int64_t NormBlocks(const Job& job) {
  const StageLayout last = LayoutStage(job, job.stages() - 1);
  return last.first_norm_block + last.norm_blocks;
}

}  // namespace pp
