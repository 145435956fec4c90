// Models for tests: the fields that a test cares about, and config.json's defaults.
#pragma once

#include <string>

#include "schema/model/families.h"

namespace pp {

inline ModelConfig Gpt2Model(ModelConfig numbers = {}) {
  numbers.family = FindFamily("gpt2");
  numbers.embedding_dropout = numbers.attention_dropout = numbers.residual_dropout = 0.1f;
  numbers.tied = true;
  return numbers;
}

// For plans that are inspected and never run: act and grad have the same size, which no other value
// has.
inline ModelConfig PaperModel(int layers) {
  return Gpt2Model({.vocab_size = 16,
                    .max_positions = 8,
                    .hidden_size = 8,
                    .layers = layers,
                    .heads = 2,
                    .intermediate_size = 32});
}

// GPT-2, or a family that descends from LLaMA, small, with all kinds of dropout that they support.
// The latter have fewer heads of keys and values, of four elements each, and Mistral a window of
// two keys.
inline ModelConfig SmallModel(const std::string& family, bool tied, int layers, int positions = 8,
                              int llama_heads = 4) {
  ModelConfig model = Gpt2Model({.vocab_size = 65,  // does not divide
                                 .max_positions = positions,
                                 .hidden_size = 16,
                                 .layers = layers,
                                 .heads = 2,
                                 .intermediate_size = 32});
  model.tied = tied;
  if (family != "gpt2") {
    model.family = FindFamily(family);
    model.embedding_dropout = model.residual_dropout = 0;
    model.heads = llama_heads;
    model.kv_heads = 2;
    model.head_dim = 4;
    if (family == "mistral") model.sliding_window = 2;
  }
  return model;
}

}  // namespace pp
