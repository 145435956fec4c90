// What a model is: its family, and the sizes of a decoder under names that fit all families.
// families.h says what a family's config.json calls them, and which operators it has.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {

struct ModelFamily;

// How the angles of rotary position embeddings differ from those of the position itself.
enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

// The angles of rotary position embeddings: position t turns pair i of a head's D/2 pairs by t /
// theta^(2i/D), by kLinear factor times as slowly.
//
// kLlama3: pairs that turn fewer than low_factor times in original_positions positions turn factor
// times as slowly, those with more than high_factor times as before, with a linear transition
// between them in the number of turns.
//
// kYarn (Peng et al., "YaRN", 2023): the same with beta_slow and beta_fast, with a transition in i;
// cosines and sines are multiplied by attention_factor.
struct RopeConfig {
  float theta = 10000;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1;
  int original_positions = 0;
  float low_factor = 1, high_factor = 4;
  float beta_fast = 32, beta_slow = 1, attention_factor = 1;
  bool truncate = true;  // the transition begins and ends at whole i

  bool operator==(const RopeConfig&) const = default;
};

// The function of a GPT-2's feed-forward layer: by its formula with tanh, or with the error
// function.
enum class GeluForm : uint8_t { kTanh, kExact };

struct ModelConfig {
  const ModelFamily* family = nullptr;
  int vocab_size = 0;
  int max_positions = 0;  // tokens of a sequence, at most
  int hidden_size = 0;    // floats per token in the residual stream
  int layers = 0;
  int heads = 0;
  int kv_heads = 0;  // a divisor of heads
  int head_dim = 0;
  int intermediate_size = 0;
  float norm_epsilon = 1e-5f;
  float initializer_range = 0.02f;  // standard deviation of a new model's weights
  float embedding_dropout = 0, attention_dropout = 0, residual_dropout = 0;
  bool tied = false;  // the token embedding is also the head's matrix
  bool attention_bias = false, mlp_bias = false;
  GeluForm gelu = GeluForm::kTanh;
  int sliding_window = 0;  // keys that a query sees at most, the last one its own token's; 0: all
  RopeConfig rope;

  bool operator==(const ModelConfig&) const = default;
};

// Reads a Hugging Face config.json of a known family. `file` is the name that errors give. Every
// key is read, or known to change nothing (ignored_keys.h), or added to `unknown`.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file,
                                     std::vector<std::string>* unknown = nullptr);
// `given`: the file, or the folder where it is.
Result<ModelConfig> LoadModelConfig(const std::string& given,
                                    std::vector<std::string>* unknown = nullptr);
// What to say of unknown keys: "config.json: not known, and not used: foo, bar".
std::string UnknownKeysNote(const std::string& given, const std::vector<std::string>& unknown);
// The file that is read then.
std::string ModelConfigPath(const std::string& given);
// One line that ParseModelConfig reads back.
std::string ToJson(const ModelConfig& config);
// The same for Hugging Face's libraries, which also need the class of the model.
std::string ToConfigJson(const ModelConfig& config);
// Whether the values make a model.
Status CheckModelConfig(const ModelConfig& config, const std::string& file);
// Whether weights of the model that `file` describes are weights of `model`. What concerns training
// only, dropout and initialisation, may differ.
Status CheckSameWeights(const ModelConfig& config, const std::string& file,
                        const ModelConfig& model);

// "1, 2, 3, 6", for an error text.
std::string Divisors(int number);

}  // namespace pp
