// GPT-2 under Hugging Face's names:
//
//   x -> ln_1 -> c_attn -> heads -> c_proj -> + x -> ln_2 -> c_fc -> GELU -> c_proj -> + -> x
#include <cmath>

#include "schema/model/families.h"

namespace pp {

void Gpt2Keys(ConfigKeys& keys, ModelConfig& config) {
  keys.Int("vocab_size", kMaxVocabulary, &config.vocab_size);
  keys.Int("n_positions", kMaxPositions, &config.max_positions);
  keys.Int("n_embd", kMaxWidth, &config.hidden_size);
  keys.Int("n_layer", kMaxLayers, &config.layers);
  keys.Int("n_head", kMaxWidth, &config.heads);
  keys.Int("n_inner", 4 * kMaxWidth, &config.intermediate_size, 4 * int64_t{config.hidden_size});
  config.gelu = static_cast<GeluForm>(
      keys.Word("activation_function",
                {{"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}, {"gelu", "gelu_python"}},
                static_cast<int>(config.gelu)));
  keys.Float("layer_norm_epsilon", 1e-12, 1, &config.norm_epsilon, 1e-5f);
  keys.Training("embd_pdrop", 0, 1, &config.embedding_dropout, 0.1f);
  keys.Training("attn_pdrop", 0, 1, &config.attention_dropout, 0.1f);
  keys.Training("resid_pdrop", 0, 1, &config.residual_dropout, 0.1f);
  keys.Training("initializer_range", 0, 100, &config.initializer_range, 0.02f);
  keys.Bool("tie_word_embeddings", &config.tied, true);
  keys.Only("scale_attn_weights", true);
  keys.Only("scale_attn_by_inverse_layer_idx", false);
  keys.Divides("n_embd", config.hidden_size, "n_head", config.heads);
  keys.Ignored({"n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj",
                "summary_activation", "summary_proj_to_labels", "summary_first_dropout"});
}

ModelTable Gpt2Table(const ModelConfig& config) {
  const int64_t c = config.hidden_size, inner = config.intermediate_size;
  const float std = config.initializer_range, epsilon = config.norm_epsilon;
  // The projections into the stream are initialised smaller, by their number.
  const float to_stream = std / std::sqrt(2.0f * static_cast<float>(config.layers));
  const HeadsSpec heads = {config.heads, config.heads, config.hidden_size / config.heads,
                           config.attention_dropout};
  const auto linear = [](int64_t in, std::vector<Piece> out, Cut cut, float deviation) {
    return Linear({in, std::move(out), cut, Matrix::kInOut, Bias::kYes, deviation});
  };
  const Piece one_of_three = {"attn.c_attn", c};  // queries, keys, values

  return {
      .prefix = "transformer.",
      .layer_prefix = "transformer.h.{}.",
      .first = {Embedding({.token_name = "transformer.wte.weight",
                           .position_name = "transformer.wpe.weight",
                           .vocabulary = config.vocab_size,
                           .positions = config.max_positions,
                           .width = c,
                           .std = std,
                           .dropout = config.embedding_dropout})},
      .layer = {LayerNorm("ln_1", c, epsilon),
                linear(c, {one_of_three, one_of_three, one_of_three}, Cut::kOut, std),
                Attention(heads), linear(c, {{"attn.c_proj", c}}, Cut::kIn, to_stream),
                Residual(c, config.residual_dropout, 1),

                LayerNorm("ln_2", c, epsilon), linear(c, {{"mlp.c_fc", inner}}, Cut::kOut, std),
                Gelu(inner, config.gelu), linear(inner, {{"mlp.c_proj", c}}, Cut::kIn, to_stream),
                Residual(c, config.residual_dropout, 2)},
      .last = NormAndHead(LayerNorm("transformer.ln_f", c, epsilon),
                          {.name = config.tied ? "transformer.wte.weight" : "lm_head.weight",
                           .width = c,
                           .vocabulary = config.vocab_size,
                           .tied = config.tied,
                           .std = std})};
}

}  // namespace pp
