// The model families. A new one is a file with its two functions, declared here, and a row of the
// table in families.cc.
#pragma once

#include <span>
#include <string_view>

#include "schema/model/config_keys.h"
#include "schema/model/operators.h"

namespace pp {

struct ModelFamily {
  const char* model_type;    // in config.json
  const char* architecture;  // of the model with its head, in config.json
  // Names each key of config.json, and its field in `config`.
  void (*keys)(ConfigKeys& keys, ModelConfig& config);
  // REQUIRES: a config that CheckModelConfig accepts.
  ModelTable (*table)(const ModelConfig& config);
  // Keys that have two names.
  std::span<const KeyAlias> aliases = {};
  // The Linears that adapters are usually for (lora.h): those that peft takes for the family.
  std::string_view lora_targets = "q_proj,v_proj";
};

std::span<const ModelFamily> Families();
// Null: there is none of this name.
const ModelFamily* FindFamily(std::string_view model_type);

// The operators of a model.
inline ModelTable TableOf(const ModelConfig& config) { return config.family->table(config); }

// Radford et al., "Language models are unsupervised multitask learners", 2019.
inline constexpr KeyAlias kGpt2Aliases[] = {{"n_embd", "hidden_size"},
                                            {"n_positions", "max_position_embeddings"},
                                            {"n_layer", "num_hidden_layers"},
                                            {"n_head", "num_attention_heads"}};
void Gpt2Keys(ConfigKeys& keys, ModelConfig& config);
ModelTable Gpt2Table(const ModelConfig& config);

// Touvron et al., "LLaMA", 2023; Dubey et al., "The Llama 3 herd of models", 2024.
void LlamaKeys(ConfigKeys& keys, ModelConfig& config);
ModelTable LlamaTable(const ModelConfig& config);

// Jiang et al., "Mistral 7B", 2023.
void MistralKeys(ConfigKeys& keys, ModelConfig& config);
ModelTable MistralTable(const ModelConfig& config);

// Yang et al., "Qwen2 technical report", 2024, and "Qwen2.5 technical report", 2024.
void Qwen2Keys(ConfigKeys& keys, ModelConfig& config);
ModelTable Qwen2Table(const ModelConfig& config);

// Yang et al., "Qwen3 technical report", 2025: its dense models.
void Qwen3Keys(ConfigKeys& keys, ModelConfig& config);
ModelTable Qwen3Table(const ModelConfig& config);

}  // namespace pp
