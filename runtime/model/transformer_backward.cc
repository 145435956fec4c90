// Transformer, backward: layer by layer from the end, the input half and the weight half of each;
// BW runs them in turn, BW_input and BW_weight one half of all.
#include <cstring>

#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/norm.h"
#include "kernels/residual.h"
#include "runtime/model/transformer_parts.h"

namespace pp {

namespace cpu = kernels::cpu;
using kernels::Update;

namespace {

// accumulator (= or +=) part.
void Accumulate(Update update, int64_t n, const float* part, float* accumulator) {
  if (update == Update::kSet) {
    std::memcpy(accumulator, part, n * sizeof(float));
  } else {
    cpu::Add({.n = n, .x = part, .out = accumulator});
  }
}

}  // namespace

void Transformer::Backward(const StageCall& call) {
  float* flow = layout_.first ? At(call.scratch, layout_.scratch.flow) : call.grad_before;
  float* d_final = At(call.scratch, layout_.scratch.d_final);
  const Work work = WorkAt(call.scratch, layout_.scratch.work);
  StartFlow(call, d_final, flow);
  if (layout_.last) HeadBackwardWeight(call, d_final);
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardInput(call, layer, work, flow);
    LayerBackwardWeight(call, layer, work);
  }
  if (layout_.first) EmbeddingBackwardWeight(call, flow);
}

void Transformer::BackwardInput(const StageCall& call) {
  float* flow = layout_.first ? At(call.work, layout_.work_embed) : call.grad_before;
  StartFlow(call, At(call.work, layout_.work_final), flow);
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardInput(call, layer, WorkAt(call.work, layout_.work[layer]), flow);
  }
}

void Transformer::BackwardWeight(const StageCall& call) {
  if (layout_.last) HeadBackwardWeight(call, At(call.work, layout_.work_final));
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardWeight(call, layer, WorkAt(call.work, layout_.work[layer]));
  }
  if (layout_.first) EmbeddingBackwardWeight(call, At(call.work, layout_.work_embed));
}

// The gradient with respect to the output of the last layer: received, or the head's.
void Transformer::StartFlow(const StageCall& call, float* d_final, float* flow) {
  if (!layout_.last) {
    std::memcpy(flow, call.grad, layout_.grad_bytes);
    return;
  }
  const SavedHead saved = SavedHeadAt(call, Keep::kStash);
  float* d_normed = At(call.scratch, layout_.scratch.normed);
  cpu::CrossEntropyBackward({.rows = rows_,
                             .vocabulary = model_.vocab_size,
                             .row_stride = layout_.logits_stride,
                             .logits = saved.logits,
                             .target = call.targets,
                             .statistics = saved.statistics,
                             .scale = static_cast<float>(call.loss_scale)});
  Multiply(call, products_.d_logits,
           {.a = saved.logits, .b = Weight(call, HeadTensor()), .c = d_normed});
  cpu::LayerNormBackward({.rows = rows_,
                          .channels = model_.n_embd,
                          .dy = d_normed,
                          .x = Input(call, layout_.layers, Keep::kStash),
                          .gamma = Weight(call, FinalNormTensor(0)),
                          .mean = saved.mean,
                          .rstd = saved.rstd,
                          .dx = flow,
                          .dgamma = d_final,
                          .dbeta = d_final + model_.n_embd});
}

// flow: in, with respect to the output of the layer; out, to its input.
void Transformer::LayerBackwardInput(const StageCall& call, int layer, const Work& work,
                                     float* flow) {
  const int64_t c = model_.n_embd;
  const Saved saved = SavedAt(call, layer, Keep::kStash);
  float* d_normed = At(call.scratch, layout_.scratch.normed);
  const auto weight = [&](int tensor) { return Weight(call, LayerTensor(layer, tensor)); };
  const auto drop = [&](int operation, float* out) {
    cpu::Dropout({.batch = batch_,
                  .sequence_elements = int64_t{sequence_} * c,
                  .x = flow,
                  .out = out,
                  .dropout = Dropout(call, layer, operation, model_.resid_pdrop)});
  };
  const auto normalize = [&](const float* x, const float* gamma, const float* mean,
                             const float* rstd, float* d_parameters) {
    cpu::LayerNormBackward({.rows = rows_,
                            .channels = c,
                            .dy = d_normed,
                            .x = x,
                            .gamma = gamma,
                            .mean = mean,
                            .rstd = rstd,
                            .dx = flow,
                            .dx_update = Update::kAdd,
                            .dgamma = d_parameters,
                            .dbeta = d_parameters + c});
  };

  drop(kMlpDropout, work.d_mlp);
  Multiply(call, products_.d_mlp, {.a = work.d_mlp, .b = weight(kMlpWeight), .c = work.d_hidden});
  cpu::GeluBackward(
      {.n = rows_ * model_.n_inner, .x = saved.hidden, .dy = work.d_hidden, .dx = work.d_hidden});
  Multiply(call, products_.d_hidden,
           {.a = work.d_hidden, .b = weight(kHiddenWeight), .c = d_normed});
  normalize(saved.middle, weight(kNorm2Weight), saved.mean2, saved.rstd2, work.d_norm + 2 * c);

  drop(kProjDropout, work.d_proj);
  Multiply(call, products_.d_proj, {.a = work.d_proj, .b = weight(kProjWeight), .c = d_normed});
  cpu::AttentionBackward({.shape = Heads(),
                          .qkv = saved.qkv,
                          .out = saved.context,
                          .lse = saved.lse,
                          .dout = d_normed,
                          .dqkv = work.d_qkv,
                          .dropout = Dropout(call, layer, kAttentionDropout, model_.attn_pdrop),
                          .scratch = At(call.scratch, layout_.scratch.kernels),
                          .helpers = workspace_->helpers()});
  Multiply(call, products_.d_qkv, {.a = work.d_qkv, .b = weight(kQkvWeight), .c = d_normed});
  normalize(Input(call, layer, Keep::kStash), weight(kNorm1Weight), saved.mean1, saved.rstd1,
            work.d_norm);
}

void Transformer::LayerBackwardWeight(const StageCall& call, int layer, const Work& work) {
  const int64_t c = model_.n_embd;
  const Saved saved = SavedAt(call, layer, Keep::kStash);
  float* normed = At(call.scratch, layout_.scratch.normed);
  float* gelu = At(call.scratch, layout_.scratch.wide);
  const auto weight = [&](int tensor) { return Weight(call, LayerTensor(layer, tensor)); };
  const auto linear = [&](const int product[2], const float* input, const float* d_output,
                          int tensor) {
    const Tensor& matrix = LayerTensor(layer, tensor);
    Multiply(call, product[static_cast<int>(call.accumulate)],
             {.a = input, .b = d_output, .c = Gradient(call, matrix)});
    cpu::BiasGradient({.rows = rows_,
                       .columns = matrix.cols,
                       .dy = d_output,
                       .dbias = Gradient(call, LayerTensor(layer, tensor + 1)),
                       .update = call.accumulate});
  };

  cpu::GeluForward({.n = rows_ * model_.n_inner, .x = saved.hidden, .y = gelu});
  linear(products_.w_mlp, gelu, work.d_mlp, kMlpWeight);
  Normalize(saved.middle, weight(kNorm2Weight), weight(kNorm2Bias), saved.mean2, saved.rstd2,
            normed);
  linear(products_.w_hidden, normed, work.d_hidden, kHiddenWeight);
  linear(products_.w_proj, saved.context, work.d_proj, kProjWeight);
  Normalize(Input(call, layer, Keep::kStash), weight(kNorm1Weight), weight(kNorm1Bias), saved.mean1,
            saved.rstd1, normed);
  linear(products_.w_qkv, normed, work.d_qkv, kQkvWeight);

  const int norms[] = {kNorm1Weight, kNorm1Bias, kNorm2Weight, kNorm2Bias};
  for (int i = 0; i < 4; ++i) {
    Accumulate(call.accumulate, c, work.d_norm + i * c,
               Gradient(call, LayerTensor(layer, norms[i])));
  }
}

void Transformer::HeadBackwardWeight(const StageCall& call, const float* d_final) {
  const SavedHead saved = SavedHeadAt(call, Keep::kStash);
  float* normed = At(call.scratch, layout_.scratch.normed);
  Normalize(Input(call, layout_.layers, Keep::kStash), Weight(call, FinalNormTensor(0)),
            Weight(call, FinalNormTensor(1)), saved.mean, saved.rstd, normed);
  Multiply(call, products_.w_logits[static_cast<int>(call.accumulate)],
           {.a = saved.logits, .b = normed, .c = At(call.wgrad, HeadGradient())});
  Accumulate(call.accumulate, model_.n_embd, d_final, Gradient(call, FinalNormTensor(0)));
  Accumulate(call.accumulate, model_.n_embd, d_final + model_.n_embd,
             Gradient(call, FinalNormTensor(1)));
}

void Transformer::EmbeddingBackwardWeight(const StageCall& call, const float* d_embed) {
  const Tensor &wte = layout_.tensors[0], &wpe = layout_.tensors[1];
  if (call.accumulate == Update::kSet) {
    // A micro-batch touches only the rows of its tokens and positions.
    cpu::Fill({.n = wte.elements(), .out = Gradient(call, wte)});
    cpu::Fill({.n = wpe.elements(), .out = Gradient(call, wpe)});
  }
  cpu::EmbeddingBackward({.batch = batch_,
                          .tokens = sequence_,
                          .channels = model_.n_embd,
                          .token = call.tokens,
                          .dout = d_embed,
                          .dwte = Gradient(call, wte),
                          .dwpe = Gradient(call, wpe),
                          .dropout = Dropout(call, 0, kEmbeddingDropout, model_.embd_pdrop)});
}

}  // namespace pp
