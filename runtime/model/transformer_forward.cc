// Transformer, forward: FW, CFW and RE are one computation that keeps its results in different
// places.
#include <cstring>

#include "kernels/cross_entropy.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/norm.h"
#include "kernels/residual.h"
#include "runtime/model/transformer_parts.h"

namespace pp {

namespace cpu = kernels::cpu;

void Transformer::Forward(const StageCall& call) { RunForward(call, Keep::kStash); }

void Transformer::ForwardDrop(const StageCall& call) { RunForward(call, Keep::kScratch); }

void Transformer::Recompute(const StageCall& call) {
  double loss = 0;
  StageCall again = call;
  again.act = nullptr;
  again.loss = &loss;
  RunForward(again, Keep::kStash);
}

void Transformer::RunForward(const StageCall& call, Keep keep) {
  if (layout_.first && Stream(call, 0, keep) != nullptr) {
    cpu::EmbeddingForward({.batch = batch_,
                           .tokens = sequence_,
                           .channels = model_.n_embd,
                           .token = call.tokens,
                           .wte = Weight(call, layout_.tensors[0]),
                           .wpe = Weight(call, layout_.tensors[1]),
                           .out = Stream(call, 0, keep),
                           .dropout = Dropout(call, 0, kEmbeddingDropout, model_.embd_pdrop)});
  } else if (!layout_.first && !layout_.last && layout_.layers == 0 && call.act != nullptr) {
    std::memcpy(call.act, call.act_before, layout_.act_bytes);
  }
  for (int layer = 0; layer < layout_.layers; ++layer) ForwardLayer(call, layer, keep);
  if (layout_.last) ForwardHead(call, keep);
}

void Transformer::ForwardLayer(const StageCall& call, int layer, Keep keep) {
  const Saved saved = SavedAt(call, layer, keep);
  const float* x = Input(call, layer, keep);
  float* normed = At(call.scratch, layout_.scratch.normed);
  const auto weight = [&](int tensor) { return Weight(call, LayerTensor(layer, tensor)); };

  Normalize(x, weight(kNorm1Weight), weight(kNorm1Bias), saved.mean1, saved.rstd1, normed);
  Multiply(call, products_.qkv,
           {.a = normed, .b = weight(kQkvWeight), .c = saved.qkv, .bias = weight(kQkvBias)});
  cpu::AttentionForward({.shape = Heads(),
                         .qkv = saved.qkv,
                         .out = saved.context,
                         .lse = saved.lse,
                         .dropout = Dropout(call, layer, kAttentionDropout, model_.attn_pdrop),
                         .scratch = At(call.scratch, layout_.scratch.kernels),
                         .helpers = workspace_->helpers()});
  AddToStream(call, {.product = products_.proj,
                     .input = saved.context,
                     .weight = weight(kProjWeight),
                     .bias = weight(kProjBias),
                     .stream = x,
                     .out = saved.middle,
                     .dropout = Dropout(call, layer, kProjDropout, model_.resid_pdrop)});

  Normalize(saved.middle, weight(kNorm2Weight), weight(kNorm2Bias), saved.mean2, saved.rstd2,
            normed);
  Multiply(
      call, products_.hidden,
      {.a = normed, .b = weight(kHiddenWeight), .c = saved.hidden, .bias = weight(kHiddenBias)});
  float* out = Stream(call, layer + 1, keep);
  if (out == nullptr) return;  // a recomputation, whose last output nobody needs
  float* gelu = At(call.scratch, layout_.scratch.wide);
  cpu::GeluForward({.n = rows_ * model_.n_inner, .x = saved.hidden, .y = gelu});
  AddToStream(call, {.product = products_.mlp,
                     .input = gelu,
                     .weight = weight(kMlpWeight),
                     .bias = weight(kMlpBias),
                     .stream = saved.middle,
                     .out = out,
                     .dropout = Dropout(call, layer, kMlpDropout, model_.resid_pdrop)});
}

void Transformer::Normalize(const float* x, const float* gamma, const float* beta, float* mean,
                            float* rstd, float* y) const {
  cpu::LayerNormForward({.rows = rows_,
                         .channels = model_.n_embd,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd,
                         .epsilon = model_.layer_norm_epsilon});
}

// out = stream + dropout(input * weight + bias).
void Transformer::AddToStream(const StageCall& call, const Branch& branch) {
  if (branch.dropout.p == 0) {
    Multiply(call, branch.product,
             {.a = branch.input,
              .b = branch.weight,
              .c = branch.out,
              .bias = branch.bias,
              .residual = branch.stream});
    return;
  }
  float* product = At(call.scratch, layout_.scratch.normed);
  Multiply(call, branch.product,
           {.a = branch.input, .b = branch.weight, .c = product, .bias = branch.bias});
  cpu::Residual({.batch = batch_,
                 .sequence_elements = int64_t{sequence_} * model_.n_embd,
                 .x = branch.stream,
                 .y = product,
                 .out = branch.out,
                 .dropout = branch.dropout});
}

void Transformer::ForwardHead(const StageCall& call, Keep keep) {
  const SavedHead saved = SavedHeadAt(call, keep);
  float* normed = At(call.scratch, layout_.scratch.normed);
  Normalize(Input(call, layout_.layers, keep), Weight(call, FinalNormTensor(0)),
            Weight(call, FinalNormTensor(1)), saved.mean, saved.rstd, normed);
  Multiply(call, products_.logits,
           {.a = normed, .b = Weight(call, HeadTensor()), .c = saved.logits});
  cpu::CrossEntropyForward({.rows = rows_,
                            .vocabulary = model_.vocab_size,
                            .row_stride = layout_.logits_stride,
                            .logits = saved.logits,
                            .target = call.targets,
                            .statistics = saved.statistics,
                            .loss = call.loss});
}

}  // namespace pp
