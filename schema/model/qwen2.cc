// Qwen2 and Qwen2.5: LLaMA with biases of queries, keys and values alone.
#include "schema/model/families.h"
#include "schema/model/llama.h"

namespace pp {

void Qwen2Keys(ConfigKeys& keys, ModelConfig& config) {
  LlamaSizes(keys, config, {.kv_heads = 32});
  keys.WindowOfLayers(&config.sliding_window, 4096, config.layers);
  keys.Rope(&config.rope, config.max_positions);
}

ModelTable Qwen2Table(const ModelConfig& config) { return LlamaTable(config, {.qkv = Bias::kYes}); }

}  // namespace pp
