// Qwen3's dense models: LLaMA with an RMSNorm of each head of queries and of keys.
#include "schema/model/families.h"
#include "schema/model/llama.h"

namespace pp {

void Qwen3Keys(ConfigKeys& keys, ModelConfig& config) {
  LlamaSizes(keys, config, {.kv_heads = 32, .head_dim = 128});
  keys.Bool("attention_bias", &config.attention_bias, false);
  keys.WindowOfLayers(&config.sliding_window, 4096, config.layers);
  keys.Rope(&config.rope, config.max_positions);
}

ModelTable Qwen3Table(const ModelConfig& config) {
  const Bias attention = BiasIf(config.attention_bias);
  return LlamaTable(config, {.qkv = attention, .o = attention, .head_norms = HeadNorms::kYes});
}

}  // namespace pp
