// Mistral: LLaMA without biases, whose tokens attend to a window.
#include "schema/model/families.h"
#include "schema/model/llama.h"

namespace pp {

void MistralKeys(ConfigKeys& keys, ModelConfig& config) {
  LlamaSizes(keys, config, {.kv_heads = 8});
  keys.Window(&config.sliding_window, 4096);
  keys.Rope(&config.rope, config.max_positions);
}

ModelTable MistralTable(const ModelConfig& config) { return LlamaTable(config, {}); }

}  // namespace pp
