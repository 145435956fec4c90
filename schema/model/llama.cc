// LLaMA 1 to 3, and what other families have of it (llama.h).
#include "schema/model/llama.h"

#include <algorithm>

#include "schema/model/families.h"

namespace pp {

void LlamaSizes(ConfigKeys& keys, ModelConfig& config, const LlamaDefaults& absent) {
  keys.Int("vocab_size", kMaxVocabulary, &config.vocab_size);
  keys.Int("max_position_embeddings", kMaxPositions, &config.max_positions);
  keys.Int("hidden_size", kMaxWidth, &config.hidden_size);
  keys.Int("intermediate_size", 4 * kMaxWidth, &config.intermediate_size);
  keys.Int("num_hidden_layers", kMaxLayers, &config.layers);
  keys.Int("num_attention_heads", kMaxWidth, &config.heads);
  keys.Int("num_key_value_heads", kMaxWidth, &config.kv_heads,
           absent.kv_heads > 0 ? absent.kv_heads : config.heads, config.heads);
  keys.Divides("num_attention_heads", config.heads, "num_key_value_heads", config.kv_heads);
  const int share = config.hidden_size / std::max(1, config.heads);
  keys.Int("head_dim", 1 << 12, &config.head_dim, absent.head_dim > 0 ? absent.head_dim : share,
           share);
  keys.Require(config.head_dim >= 2 && config.head_dim % 2 == 0,
               "num_attention_heads and head_dim leave no pairs of numbers for RoPE (an even "
               "head_dim)");
  keys.Word("hidden_act", {{"silu", "swish"}}, 0);
  keys.Float("rms_norm_eps", 1e-12, 1, &config.norm_epsilon, 1e-6f);
  keys.Training("attention_dropout", 0, 1, &config.attention_dropout, 0);
  keys.Training("initializer_range", 0, 100, &config.initializer_range, 0.02f);
  keys.Bool("tie_word_embeddings", &config.tied, false);
}

ModelTable LlamaTable(const ModelConfig& config, const LlamaLayer& layer) {
  const int64_t c = config.hidden_size, inner = config.intermediate_size;
  const int64_t q = int64_t{config.heads} * config.head_dim;
  const int64_t kv = int64_t{config.kv_heads} * config.head_dim;
  const float std = config.initializer_range, epsilon = config.norm_epsilon;
  const HeadsSpec heads = {config.heads, config.kv_heads, config.head_dim, config.attention_dropout,
                           config.sliding_window};
  const auto linear = [&](int64_t in, std::vector<Piece> out, Cut cut, Bias bias) {
    return Linear({in, std::move(out), cut, Matrix::kOutIn, bias, std});
  };

  ModelTable table = {
      .prefix = "model.",
      .layer_prefix = "model.layers.{}.",
      .first = {Embedding({.token_name = "model.embed_tokens.weight",
                           .vocabulary = config.vocab_size,
                           .width = c,
                           .std = std})},
      .layer = {RmsNorm("input_layernorm", c, epsilon),
                linear(
                    c,
                    {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}},
                    Cut::kOut, layer.qkv),
                HeadNorm(heads, "self_attn.q_norm", "self_attn.k_norm", epsilon),
                Rope(heads, config.rope), Attention(heads),
                linear(q, {{"self_attn.o_proj", c}}, Cut::kIn, layer.o), Residual(c, 0, 1),

                RmsNorm("post_attention_layernorm", c, epsilon),
                linear(c, {{"mlp.gate_proj", inner}, {"mlp.up_proj", inner}}, Cut::kOut, layer.mlp),
                SwiGlu(inner), linear(inner, {{"mlp.down_proj", c}}, Cut::kIn, layer.mlp),
                Residual(c, 0, 2)},
      .last = NormAndHead(RmsNorm("model.norm", c, epsilon),
                          {.name = config.tied ? "model.embed_tokens.weight" : "lm_head.weight",
                           .width = c,
                           .vocabulary = config.vocab_size,
                           .tied = config.tied,
                           .std = std})};
  if (layer.head_norms == HeadNorms::kNo)
    std::erase_if(table.layer,
                  [](const Operator& op) { return op.kind == OperatorKind::kHeadNorm; });
  return table;
}

void LlamaKeys(ConfigKeys& keys, ModelConfig& config) {
  LlamaSizes(keys, config, {});
  keys.Bool("attention_bias", &config.attention_bias, false);
  keys.Bool("mlp_bias", &config.mlp_bias, false);
  keys.Rope(&config.rope, config.max_positions);
}

ModelTable LlamaTable(const ModelConfig& config) {
  const Bias attention = BiasIf(config.attention_bias);
  return LlamaTable(config, {.qkv = attention, .o = attention, .mlp = BiasIf(config.mlp_bias)});
}

}  // namespace pp
