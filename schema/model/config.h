// What a model is: its family, and the sizes of a decoder under names that fit all families.
// families.h says what a family's config.json calls them, and which operators it has.
#pragma once

#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

struct ModelFamily;

// The angles of rotary position embeddings: position t turns pair i of a head's D/2 pairs by t /
// theta^(2i/D). With factor > 0 they are LLaMA 3's: pairs that turn fewer than low_factor times in
// original_positions positions turn factor times as slowly, those with more than high_factor times
// as before, with a linear transition between them.
struct RopeConfig {
  float theta = 10000;
  float factor = 0, low_factor = 1, high_factor = 4;
  int original_positions = 0;

  bool operator==(const RopeConfig&) const = default;
};

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
  int sliding_window = 0;  // keys that a query sees at most, the last one its own token's; 0: all
  RopeConfig rope;

  bool operator==(const ModelConfig&) const = default;
};

// Reads a Hugging Face config.json of a known family. `file` is the name that errors give.
Result<ModelConfig> ParseModelConfig(std::string_view text, const std::string& file);
// `given`: the file, or the folder where it is.
Result<ModelConfig> LoadModelConfig(const std::string& given);
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
