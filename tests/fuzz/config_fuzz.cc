// Hugging Face's config.json: whatever the text, it gives an error or a model that is written and
// read back unchanged, and that, if small, can be laid out.
#include <cstring>
#include <string>

#include "schema/model/layout.h"
#include "tests/fuzz/mutate.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr const char* kKeys[] = {"vocab_size",
                                 "n_positions",
                                 "n_embd",
                                 "n_layer",
                                 "n_head",
                                 "n_inner",
                                 "activation_function",
                                 "layer_norm_epsilon",
                                 "embd_pdrop",
                                 "attn_pdrop",
                                 "resid_pdrop",
                                 "initializer_range",
                                 "tie_word_embeddings",
                                 "scale_attn_weights",
                                 "scale_attn_by_inverse_layer_idx",
                                 "add_cross_attention",
                                 "model_type",
                                 "hidden_size",
                                 "num_hidden_layers",
                                 "num_attention_heads",
                                 "num_key_value_heads",
                                 "intermediate_size",
                                 "max_position_embeddings",
                                 "head_dim",
                                 "hidden_act",
                                 "rms_norm_eps",
                                 "attention_bias",
                                 "mlp_bias",
                                 "rope_theta",
                                 "rope_scaling",
                                 "rope_parameters",
                                 "factor",
                                 "rope_type",
                                 "original_max_position_embeddings",
                                 "partial_rotary_factor",
                                 "sliding_window",
                                 "use_sliding_window",
                                 "max_window_layers",
                                 "layer_types",
                                 "is_causal"};
constexpr const char* kValues[] = {
    "0",
    "1",
    "2",
    "-1",
    "64",
    "1e3",
    "1e400",
    "0.5",
    "null",
    "true",
    "false",
    "\"gpt2\"",
    "[]",
    "{}",
    "\"\"",
    "\"gelu\"",
    "NaN",
    "99999999999999999999",
    "1e-5",
    "1.0",
    "0.0",
    "2147483648",
    "\"llama\"",
    "\"mistral\"",
    "\"qwen2\"",
    "\"qwen3\"",
    "Infinity",
    R"(["sliding_attention","sliding_attention"])",
    R"(["full_attention","sliding_attention"])",
    R"({"rope_type":"linear","factor":2.5})",
    R"({"rope_type":"yarn","factor":null,"original_max_position_embeddings":3})",
    R"({"rope_type":"yarn","factor":3,"beta_fast":2,"mscale":0.7,"mscale_all_dim":1e5})",
    R"({"rope_type":"llama3","factor":8,"original_max_position_embeddings":64})",
    R"({"rope_type":"default","rope_theta":1e6})"};

constexpr const char* kFamilies[] = {"llama", "mistral", "qwen2", "qwen3"};

// A right one, except for a few values.
std::string AnyInput(pp::Random& random) {
  std::string text =
      random.OneIn(2)
          ? R"({"model_type":"gpt2","vocab_size":100,"n_positions":16,"n_embd":8,"n_layer":2,"n_head":2)"
          : R"({"model_type":")" + std::string(kFamilies[random.Below(std::size(kFamilies))]) +
                R"(","vocab_size":100,"max_position_embeddings":16,"hidden_size":8,)"
                R"("num_hidden_layers":2,"num_attention_heads":2,"intermediate_size":12)";
  for (int i = random.Below(4); i > 0; --i)
    text += std::string(",\"") + kKeys[random.Below(std::size(kKeys))] +
            "\":" + kValues[random.Below(std::size(kValues))];
  return text + "}";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = pp::ParseModelConfig(text, "fuzz");
  if (!config.ok()) return 0;
  PP_CHECK(pp::CheckModelConfig(*config, "fuzz").ok());
  const auto again = pp::ParseModelConfig(pp::ToJson(*config), "fuzz");
  PP_CHECK(again.ok() && *again == *config);
  if (config->layers > 64) return 0;
  for (const int stages : {1, 2}) {
    pp::Job job{.model = *config, .sequence_length = 1, .layers_per_stage = {config->layers}};
    if (stages == 2) job.layers_per_stage.insert(job.layers_per_stage.begin(), 0);
    if (!pp::CheckJob(job).ok()) continue;
    for (int s = 0; s < stages; ++s) {
      const pp::StageLayout layout = pp::LayoutStage(job, s);
      PP_CHECK(layout.weights_bytes >= 0 && layout.stash_bytes >= 0 && layout.scratch_bytes >= 0);
      for (const pp::Tensor& tensor : layout.tensors)
        PP_CHECK(tensor.elements() > 0 && tensor.weight + tensor.bytes() <= layout.weights_bytes);
    }
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  pp::Random random(seed);
  if (size > 0 && random.OneIn(3)) return LLVMFuzzerMutate(data, size, max_size);
  std::string text = AnyInput(random);
  if (size > 0 && !random.OneIn(4)) {
    text.assign(reinterpret_cast<const char*>(data), size);
    pp::Mutate(random, &text);
  }
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
