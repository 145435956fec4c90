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
};

std::span<const ModelFamily> Families();
// Null: there is none of this name.
const ModelFamily* FindFamily(std::string_view model_type);

// The operators of a model.
inline ModelTable TableOf(const ModelConfig& config) { return config.family->table(config); }

// Radford et al., "Language models are unsupervised multitask learners", 2019.
void Gpt2Keys(ConfigKeys& keys, ModelConfig& config);
ModelTable Gpt2Table(const ModelConfig& config);

// Touvron et al., "LLaMA", 2023; Dubey et al., "The Llama 3 herd of models", 2024.
void LlamaKeys(ConfigKeys& keys, ModelConfig& config);
ModelTable LlamaTable(const ModelConfig& config);

}  // namespace pp
