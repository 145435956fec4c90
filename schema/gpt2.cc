// GPT-2 under Hugging Face's names:
//
//   x -> ln_1 -> c_attn -> heads -> c_proj -> + x -> ln_2 -> c_fc -> GELU -> c_proj -> + -> x
#include <cmath>

#include "schema/model.h"
#include "schema/operators.h"

namespace pp {

ModelTable Gpt2(const ModelConfig& config) {
  const int64_t c = config.n_embd, inner = config.n_inner, vocabulary = config.vocab_size;
  const float std = config.initializer_range;
  // The projections into the stream begin smaller, by their number.
  const float to_stream = std / std::sqrt(2.0f * static_cast<float>(config.n_layer));

  const auto norm = [&](const std::string& name) {
    return Operator{.kind = OperatorKind::kNorm,
                    .in = c,
                    .out = c,
                    .stride = c,
                    .parameters = {{.name = name + ".weight", .cols = c, .mean = 1},
                                   {.name = name + ".bias", .cols = c}},
                    .epsilon = config.layer_norm_epsilon};
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out, float deviation) {
    return Operator{
        .kind = OperatorKind::kLinear,
        .in = in,
        .out = out,
        .stride = out,
        .parameters = {
            {.name = name + ".weight", .rows = in, .cols = out, .matrix = true, .std = deviation},
            {.name = name + ".bias", .cols = out}}};
  };
  const auto residual = [&](int dropout_id) {
    return Operator{.kind = OperatorKind::kResidual,
                    .in = c,
                    .out = c,
                    .stride = c,
                    .dropout = config.resid_pdrop,
                    .dropout_id = dropout_id};
  };
  const Operator embedding = {
      .kind = OperatorKind::kEmbedding,
      .out = c,
      .stride = c,
      .parameters =
          {{.name = "wte.weight", .rows = vocabulary, .cols = c, .matrix = true, .std = std},
           {.name = "wpe.weight",
            .rows = config.n_positions,
            .cols = c,
            .matrix = true,
            .std = std}},
      .dropout = config.embd_pdrop,
      .dropout_id = 7};
  const Operator attention = {.kind = OperatorKind::kAttention,
                              .in = 3 * c,
                              .out = c,
                              .stride = c,
                              .heads = config.n_head,
                              .dropout = config.attn_pdrop,
                              .dropout_id = 0};
  const Operator gelu = {.kind = OperatorKind::kGelu, .in = inner, .out = inner, .stride = inner};
  const bool tied = config.tie_word_embeddings;
  const int64_t padded = (vocabulary + 15) / 16 * 16;  // whole cache lines
  const Operator head = {.kind = OperatorKind::kLinear,
                         .in = c,
                         .out = vocabulary,
                         .stride = padded,
                         .parameters = {{.name = tied ? "wte.weight" : "lm_head.weight",
                                         .rows = vocabulary,
                                         .cols = c,
                                         .matrix = true,
                                         .std = std,
                                         .tied = tied}},
                         .matrix = Matrix::kOutIn};
  const Operator loss = {.kind = OperatorKind::kLoss, .in = vocabulary, .stride = padded};

  return {.layer_prefix = "h.{}.",
          .first = {embedding},
          .layer = {norm("ln_1"), linear("attn.c_attn", c, 3 * c, std), attention,
                    linear("attn.c_proj", c, c, to_stream), residual(1),

                    norm("ln_2"), linear("mlp.c_fc", c, inner, std), gelu,
                    linear("mlp.c_proj", inner, c, to_stream), residual(2)},
          .last = {norm("ln_f"), head, loss}};
}

}  // namespace pp
