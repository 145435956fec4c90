// Every key of a config.json is read, known to change nothing, or named.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "schema/model/families.h"
#include "schema/model/ignored_keys.h"

namespace pp {
namespace {

using Json = nlohmann::json;

struct Parsed {
  std::string error;
  ModelConfig config;
  std::vector<std::string> unknown;
};

Parsed Parse(const std::string& text) {
  Parsed parsed;
  const auto config = ParseModelConfig(text, "c.json", &parsed.unknown);
  if (config.ok()) {
    parsed.config = *config;
    CHECK(*ParseModelConfig(ToJson(*config), "again") == *config);
  } else {
    parsed.error = config.status().message();
  }
  return parsed;
}
Parsed Parse(const Json& json) { return Parse(json.dump()); }

// All keys that transformers has for a family, with their defaults.
Json KeysOf(const std::string& family) {
  std::ifstream file("tests/reference/config_keys.json");
  return Json::parse(file).at(family);
}

// Where Qwen's windows have an effect.
Json WithWindow(Json keys) {
  if (!keys.contains("use_sliding_window")) return keys;
  keys.update({{"use_sliding_window", true}, {"max_window_layers", 0}, {"sliding_window", 64}});
  keys.erase("layer_types");
  return keys;
}

Json Another(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>() * 2 + 2;
  if (value.is_number()) return value.get<double>() / 2 + 0.25;
  if (value.is_object()) return {{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e4}};
  if (value.is_array()) return Json{"sliding_attention"};
  return "another";
}

bool Names(const std::string& error, const std::string& key) {
  return error.find(key) != std::string::npos;
}

TEST_CASE("each key of transformers is read, or known to change nothing") {
  for (const ModelFamily& family : Families()) {
    const Json keys = KeysOf(family.model_type), base = WithWindow(keys);
    CHECK(Parse(keys).error.empty());
    const Parsed before = Parse(base);
    REQUIRE(before.error.empty());
    CHECK(before.unknown.empty());
    for (const auto& [key, value] : base.items()) {
      INFO(family.model_type << ": " << key);
      Json changed = base;
      changed[key] = Another(value);
      const Parsed after = Parse(changed);
      CHECK((after.unknown.empty() || key == "pruned_heads"));  // which has none by default
      const bool ignored =
          std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) !=
              std::end(kIgnoredKeys) ||
          (before.config.family->aliases.size() > 0 && key.starts_with("summary_")) ||
          key == "reorder_and_upcast_attn" || key == "pruned_heads";
      if (ignored) {
        CHECK((after.error.empty() && after.config == before.config));
      } else {
        CHECK((Names(after.error, key) || (after.error.empty() && after.config != before.config)));
      }
      // What nobody knows is named, whatever it is; null is as good as nothing.
      Json renamed = base;
      renamed[key + "_of_theirs"] = 1;
      CHECK(Parse(renamed).unknown == std::vector<std::string>{key + "_of_theirs"});
      renamed[key + "_of_theirs"] = nullptr;
      CHECK(Parse(renamed).unknown.empty());
    }
  }
}

TEST_CASE("GPT-2's keys have the names of other models, too") {
  const Json keys = KeysOf("gpt2");
  const ModelConfig config = Parse(keys).config;
  for (const KeyAlias& alias : config.family->aliases) {
    Json renamed = keys;
    renamed[alias.other] = renamed[alias.key];
    CHECK(Parse(renamed).config == config);
    renamed.erase(alias.key);
    CHECK(Parse(renamed).config == config);
    renamed[alias.key] = 5;
    CHECK(Names(Parse(renamed).error, alias.other));
  }
}

constexpr char kLlama[] =
    R"({"model_type":"llama","vocab_size":97,"max_position_embeddings":32,"hidden_size":36,)"
    R"("num_hidden_layers":4,"num_attention_heads":6,"intermediate_size":50)";
Parsed Llama(const std::string& more) { return Parse(kLlama + ("," + more) + "}"); }

TEST_CASE("angles that a file gives twice are the same") {
  const std::string linear = R"({"rope_type":"linear","factor":4.0,"rope_theta":1e4})";
  const std::string plain = R"({"rope_type":"default","rope_theta":1e4})";
  CHECK(Llama(R"("rope_scaling":)" + linear + R"(,"rope_parameters":)" + linear).error.empty());
  CHECK(Llama(R"("rope_scaling":)" + linear + R"(,"rope_parameters":)" + plain).error ==
        "c.json: rope_scaling and rope_parameters do not mean the same (one of them)");
  CHECK(Llama(R"("rope_theta":5e5,"rope_parameters":)" + plain).error ==
        "c.json: rope_theta is 500000.0, and 10000.0 in rope_parameters (one of them)");
  CHECK(Llama(R"("rope_scaling":{},"rope_parameters":)" + linear).config ==
        Llama(R"("rope_parameters":)" + linear).config);
  CHECK(Llama(R"("rope_scaling":{"type":"linear","rope_type":"yarn","factor":4.0})").error ==
        "c.json: rope_scaling: rope_type and type are not the same (one of them)");
  CHECK(Llama(R"("partial_rotary_factor":0.5)").error ==
        "c.json: partial_rotary_factor is 0.5 (only 1 is supported)");
  CHECK(Llama(R"("rope_scaling":{"rope_type":"linear","factor":null})").error ==
        "c.json: rope_scaling: factor is missing (at least 1)");
  const std::string yarn = R"("rope_scaling":{"rope_type":"yarn","factor":null,"truncate":)";
  CHECK_FALSE(Llama(yarn + "null}").config.rope.truncate);
  CHECK(Llama(yarn + "true}").config.rope.truncate);
  // What another type of scaling would read is named.
  CHECK(Llama(R"("rope_scaling":{"rope_type":"linear","factor":4.0,"beta_fast":3.0,"foo":1})")
            .unknown == std::vector<std::string>{"rope_scaling.beta_fast", "rope_scaling.foo"});
}

TEST_CASE("the positions that a model was trained for may stand outside") {
  const std::string yarn = R"("rope_scaling":{"rope_type":"yarn","factor":4.0)";
  CHECK(Llama(yarn + "}").config.rope.original_positions == 32);
  CHECK(Llama(yarn + R"(},"original_max_position_embeddings":8)").config.rope.original_positions ==
        8);
  CHECK(Names(Llama(yarn + R"(,"original_max_position_embeddings":9},)"
                           R"("original_max_position_embeddings":8)")
                  .error,
              "original_max_position_embeddings is 8, and 9 in rope_scaling"));
  // As transformers computes it where the file has none.
  CHECK(Llama(yarn + "}").config.rope.attention_factor == 1.13862944f);
  CHECK(Llama(yarn + R"(,"attention_factor":1.5})").config.rope.attention_factor == 1.5f);
  CHECK(Llama(yarn + R"(,"mscale":2.0,"mscale_all_dim":1.0})").config.rope.attention_factor ==
        Approx((0.2 * std::log(4) + 1) / (0.1 * std::log(4) + 1)));
}

TEST_CASE("layers that differ are refused by name") {
  Json keys = KeysOf("qwen3");
  keys["layer_types"] = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  CHECK(Names(Parse(keys).error, "layer_types"));
  keys["use_sliding_window"] = true, keys["sliding_window"] = 64;
  CHECK(Parse(keys).error ==
        "c.json: layer_types: 1 of 4 layers have a sliding window (all or none: layers that differ "
        "are not supported)");
  keys.erase("layer_types");
  CHECK(Parse(keys).config.sliding_window == 0);  // max_window_layers is 28
  keys["max_window_layers"] = 3;
  CHECK(Names(Parse(keys).error, "max_window_layers is 3: 1 of 4 layers"));
  CHECK(Names(Llama(R"("layer_types":["sliding_attention","sliding_attention",)"
                    R"("sliding_attention","sliding_attention"])")
                  .error,
              "layer_types and sliding_window"));
  Json mistral = KeysOf("mistral");
  CHECK(Parse(mistral).config.sliding_window == 4096);
  mistral.erase("sliding_window");
  CHECK(Parse(mistral).config.sliding_window == 4096);
  mistral["sliding_window"] = nullptr;
  CHECK(Parse(mistral).config.sliding_window == 0);
}

TEST_CASE("what only Python writes is no number") {
  CHECK(Llama(R"("foo":Infinity,"top_p":NaN,"min_p":-Infinity,"prefix":"a \"NaN\" b")").unknown ==
        std::vector<std::string>{"foo"});
  CHECK(Llama(R"("rms_norm_eps":NaN)").error ==
        "c.json: rms_norm_eps is NaN (a number of at least 1e-12 and less than 1)");
  CHECK(Llama(R"("rope_theta":-Infinity)").error ==
        "c.json: rope_theta is -Infinity (a number of at least 1 and less than 1000000000000000)");
  CHECK(Llama(R"("foo":Infinitely)").error ==
        "c.json: not a JSON object (a Hugging Face config.json)");
}

}  // namespace
}  // namespace pp
