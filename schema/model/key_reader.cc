#include "schema/model/key_reader.h"

#include <algorithm>
#include <cmath>

#include "schema/base/json.h"

namespace pp {
namespace {

using Json = nlohmann::json;

constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6;

bool IsWhole(const Json& value, int limit) {
  if (value.is_number_unsigned())
    return value.get<uint64_t>() >= 1 && value.get<uint64_t>() <= static_cast<uint64_t>(limit);
  return value.is_number_integer() && value.get<int64_t>() >= 1 && value.get<int64_t>() <= limit;
}

// What transformers multiplies cosines and sines by, unless the file says it.
float YarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  const auto scale = [factor](double by) {
    return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1;
  };
  const bool both = mscale != 0 && mscale_all_dim != 0;
  return static_cast<float>(both ? scale(mscale) / scale(mscale_all_dim) : scale(1));
}

int64_t CountSliding(const Json& types) {
  return std::count(types.begin(), types.end(), Json("sliding_attention"));
}

}  // namespace

std::string ShortJson(const Json& value) {
  const std::string text = DumpJson(value);
  return text.size() <= 40 ? text : text.substr(0, 37) + "...";
}

const Json* KeyReader::Member(const char* key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

const Json* KeyReader::Find(const char* key) {
  known_.insert(key);
  const Json* found = Member(key);
  for (const KeyAlias& alias : aliases_) {
    if (std::string_view(alias.key) != key) continue;
    known_.insert(alias.other);
    const Json* other = Member(alias.other);
    if (found != nullptr && other != nullptr && *found != *other)
      Fail("{} is {}, and {}, its other name, is {} (one of them)", key, ShortJson(*found),
           alias.other, ShortJson(*other));
    if (found == nullptr) found = other;
  }
  return found;
}

void KeyReader::ListUnknown(const std::string& prefix, std::vector<std::string>* unknown) const {
  // An empty list or object says no more than null.
  for (const auto& [key, value] : object_.items())
    if (!known_.contains(key) && !value.is_null() && !(value.is_structured() && value.empty()))
      unknown->push_back(prefix + key);
  unknown->insert(unknown->end(), unknown_inside_.begin(), unknown_inside_.end());
}

void KeyReader::Int(const char* key, int limit, int* value) {
  if (Find(key) == nullptr) return Fail("{} is missing (a number from 1 to {})", key, limit);
  Int(key, limit, value, 0);
}

void KeyReader::Int(const char* key, int limit, int* value, int64_t fallback) {
  Int(key, limit, value, fallback, fallback);
}

void KeyReader::Int(const char* key, int limit, int* value, int64_t absent, int64_t null) {
  *value = static_cast<int>(object_.contains(key) ? null : absent);
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!IsWhole(*found, limit))
    return Fail("{} is {} (a whole number from 1 to {})", key, ShortJson(*found), limit);
  *value = found->get<int>();
}

void KeyReader::Float(const char* key, double low, double high, float* value, float fallback) {
  *value = fallback;
  const Json* found = Find(key);
  if (found == nullptr) return;
  // A value just below `high` may round to it.
  if (!found->is_number() || found->get<float>() < static_cast<float>(low) ||
      !(found->get<double>() < high) || !(found->get<float>() < static_cast<float>(high)))
    return Fail("{} is {} (a number of at least {} and less than {})", key, ShortJson(*found), low,
                high);
  *value = found->get<float>();
}

void KeyReader::Bool(const char* key, bool* value, bool fallback) {
  *value = fallback;
  const Json* found = Find(key);
  if (found == nullptr) return;
  if (!found->is_boolean()) return Fail("{} is {} (true or false)", key, ShortJson(*found));
  *value = found->get<bool>();
}

void KeyReader::Only(const char* key, bool supported) {
  bool value = supported;
  Bool(key, &value, supported);
  if (value != supported) Fail("{} is {} (only {} is supported)", key, value, supported);
}

int KeyReader::Word(const char* key, std::initializer_list<Words> meanings, int) {
  const Json* found = Find(key);
  if (found == nullptr) return 0;
  std::string right;
  int meaning = 0;
  for (const Words& words : meanings) {
    std::string same;
    for (const char* word : words) {
      if (*found == word) return meaning;
      same += fmt::format("{}{}", same.empty() ? "" : " or ", word);
    }
    right += fmt::format("{}{}{}", right.empty() ? "" : "; ", same,
                         words.size() > 1 ? ", which are the same" : "");
    ++meaning;
  }
  Fail("{} is {} ({})", key, ShortJson(*found), right);
  return 0;
}

void KeyReader::Divides(const char* key, int value, const char* divisor_key, int divisor) {
  if (divisor < 1 || value % divisor == 0) return;
  Fail("{} is {}, which {} {} does not divide ({} would)", key, value, divisor_key, divisor,
       Divisors(value));
}

// transformers 5 writes rope_parameters, with everything in it; earlier versions wrote rope_theta
// and, next to it, rope_scaling. A file with both, whoever added one of them, has to mean the same.
void KeyReader::Rope(RopeConfig* rope, int positions) {
  *rope = {};
  Float("rope_theta", 1, kMaxTheta, &rope->theta, rope->theta);
  float whole = 1;
  Float("partial_rotary_factor", 0, 2, &whole, 1);
  Require(whole == 1, fmt::format("partial_rotary_factor is {} (only 1 is supported)", whole));
  Find("original_max_position_embeddings");
  RopeConfig both[2] = {*rope, *rope};
  constexpr const char* kKeys[] = {"rope_parameters", "rope_scaling"};
  const Json* found[2];
  for (int i = 0; i < 2; ++i) {
    found[i] = Find(kKeys[i]);
    if (found[i] != nullptr && found[i]->is_object() && found[i]->empty()) found[i] = nullptr;
    if (found[i] != nullptr) RopeOf(kKeys[i], positions, &both[i]);
  }
  Require(found[0] == nullptr || found[1] == nullptr || both[0] == both[1],
          "rope_scaling and rope_parameters do not mean the same (one of them)");
  *rope = both[found[0] != nullptr ? 0 : 1];
}

void KeyReader::RopeOf(const char* key, int positions, RopeConfig* rope) {
  const Json& found = *Find(key);
  if (!found.is_object()) return Fail("{} is {} (an object, or null)", key, ShortJson(found));
  // Its members, and those of the file that belong to it.
  for (const char* outside :
       {"rope_theta", "original_max_position_embeddings", "partial_rotary_factor"}) {
    const Json* other = Member(outside);
    const auto it = found.find(outside);
    if (other != nullptr && it != found.end() && !it->is_null() && *it != *other)
      Fail("{} is {}, and {} in {} (one of them)", outside, ShortJson(*other), ShortJson(*it), key);
  }
  Json object = found;
  if (const Json* original = Member("original_max_position_embeddings"))
    object["original_max_position_embeddings"] = *original;
  const std::string inside = file_ + ": " + key;
  KeyReader reader(object, inside);
  const Json* type = reader.Find("rope_type");
  const Json* older = reader.Find("type");
  reader.Require(type == nullptr || older == nullptr || *type == *older,
                 "rope_type and type are not the same (one of them)");
  if (type == nullptr) type = older;
  reader.Require(type == nullptr || type->is_string(), "rope_type is no word");
  const std::string name =
      type == nullptr || !type->is_string() ? "default" : type->get<std::string>();
  reader.Float("rope_theta", 1, kMaxTheta, &rope->theta, rope->theta);
  float whole = 1;
  reader.Float("partial_rotary_factor", 0, 2, &whole, 1);
  reader.Require(whole == 1,
                 fmt::format("partial_rotary_factor is {} (only 1 is supported)", whole));
  reader.Scaling(name.c_str(), positions, rope);
  if (status_.ok()) status_ = reader.status();
  reader.known_.insert("original_max_position_embeddings");  // of the other types: of no use
  reader.ListUnknown(std::string(key) + ".", &unknown_inside_);
}

void KeyReader::Scaling(const char* type, int positions, RopeConfig* rope) {
  const std::string_view name = type;
  if (name == "default") return;
  const auto factor = [&] {
    const bool ratio = name == "yarn" && object_.contains("factor");  // null has a meaning there
    Require(Find("factor") != nullptr || ratio, "factor is missing (at least 1)");
    Float("factor", 1, kMaxFactor, &rope->factor, 1);
  };
  const auto original = [&] {
    Int("original_max_position_embeddings", kMaxPositions, &rope->original_positions, positions);
  };
  const auto ordered = [&](const char* low_key, float low, const char* high_key, float high) {
    Require(low < high, fmt::format("{} is {} (less than {}, {})", low_key, low, high_key, high));
  };
  if (name == "linear") {
    rope->scaling = RopeScaling::kLinear;
    factor();
  } else if (name == "llama3") {
    rope->scaling = RopeScaling::kLlama3;
    factor();
    original();
    Float("low_freq_factor", 1e-6, kMaxFactor, &rope->low_factor, rope->low_factor);
    Float("high_freq_factor", 1e-6, kMaxFactor, &rope->high_factor, rope->high_factor);
    ordered("low_freq_factor", rope->low_factor, "high_freq_factor", rope->high_factor);
  } else if (name == "yarn") {
    rope->scaling = RopeScaling::kYarn;
    factor();
    original();
    if (Find("factor") == nullptr) {  // null: as DeepSeek's files have it
      rope->factor = static_cast<float>(positions) / static_cast<float>(rope->original_positions);
      Require(
          rope->factor >= 1,
          fmt::format("original_max_position_embeddings is {} (at most the model's positions, {})",
                      rope->original_positions, positions));
    }
    Require(rope->theta > 1, "rope_theta is 1 (more than that with yarn)");
    Float("beta_fast", 0, kMaxFactor, &rope->beta_fast, 0);
    Float("beta_slow", 0, kMaxFactor, &rope->beta_slow, 0);
    if (rope->beta_fast == 0) rope->beta_fast = 32;
    if (rope->beta_slow == 0) rope->beta_slow = 1;
    ordered("beta_slow", rope->beta_slow, "beta_fast", rope->beta_fast);
    float mscale, mscale_all_dim;
    Float("mscale", 0, kMaxFactor, &mscale, 0);
    Float("mscale_all_dim", 0, kMaxFactor, &mscale_all_dim, 0);
    Float("attention_factor", 1e-6, kMaxFactor, &rope->attention_factor,
          YarnAttentionFactor(rope->factor, mscale, mscale_all_dim));
    Require(rope->attention_factor >= 1e-6f && rope->attention_factor < kMaxFactor,
            fmt::format("mscale is {} and mscale_all_dim {} (nearer to each other)", mscale,
                        mscale_all_dim));
    Bool("truncate", &rope->truncate, !object_.contains("truncate"));  // null is false
  } else {
    Fail("rope_type is \"{}\" (\"default\", \"linear\", \"llama3\" or \"yarn\")", Shown(name));
  }
}

void KeyReader::Window(int* window, int absent) {
  Int("sliding_window", INT32_MAX, window, absent, 0);
}

void KeyReader::WindowOfLayers(int* window, int absent, int layers) {
  bool use;
  Bool("use_sliding_window", &use, false);
  Window(window, absent);
  int first = 28;  // the layers from here on have it, unless layer_types says so
  const Json* from = Find("max_window_layers");
  if (from != nullptr && !IsWhole(*from, INT32_MAX) && *from != 0)
    return Fail("max_window_layers is {} (a whole number from 0 on)", ShortJson(*from));
  if (from != nullptr) first = from->get<int>();
  const Json* types = Find("layer_types");
  const bool some =
      types != nullptr ? types->is_array() && CountSliding(*types) > 0 : first < layers;
  const bool all = types != nullptr || first == 0;
  if (!use || !some) *window = 0;
  Require(*window == 0 || all,
          fmt::format("max_window_layers is {}: {} of {} layers have a sliding "
                      "window (all or none: layers that differ are not supported)",
                      first, layers - first, layers));
}

void KeyReader::SameLayers(int layers, int window) {
  const Json* types = Find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != layers)
    return Fail("layer_types is {} (a list of {} words)", ShortJson(*types), layers);
  for (const Json& type : *types)
    if (type != "full_attention" && type != "sliding_attention")
      return Fail("layer_types has {} (full_attention or sliding_attention)", ShortJson(type));
  const int64_t sliding = CountSliding(*types);
  Require(
      sliding == 0 || sliding == layers,
      fmt::format("layer_types: {} of {} layers have a sliding window (all or none: layers that "
                  "differ are not supported)",
                  sliding, layers));
  Require((sliding > 0) == (window > 0),
          fmt::format("layer_types and sliding_window do not mean the same (one of them)"));
}

}  // namespace pp
