// LLaMA and the families that descend from it: what they share, under Hugging Face's names.
//
//   x -> input_layernorm -> q, k, v [-> q_norm, k_norm] -> RoPE -> heads -> o_proj -> + x
//     -> post_attention_layernorm -> gate, up -> SwiGLU -> down_proj -> + -> x
#pragma once

#include "schema/model/config_keys.h"
#include "schema/model/operators.h"

namespace pp {

// Where a file has no such key. 0: as many as heads, or their equal share of the width.
struct LlamaDefaults {
  int kv_heads = 0;
  int head_dim = 0;
};
// The keys that all of them have. A family adds those of its biases and windows, then the angles.
void LlamaSizes(ConfigKeys& keys, ModelConfig& config, const LlamaDefaults& absent);

enum class HeadNorms : uint8_t { kNo, kYes };
struct LlamaLayer {
  Bias qkv = Bias::kNo, o = Bias::kNo, mlp = Bias::kNo;
  HeadNorms head_norms = HeadNorms::kNo;
};
ModelTable LlamaTable(const ModelConfig& config, const LlamaLayer& layer);

inline Bias BiasIf(bool given) { return given ? Bias::kYes : Bias::kNo; }

}  // namespace pp
