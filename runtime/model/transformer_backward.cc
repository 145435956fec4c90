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

void Transformer::Backward(const StageValues& values) {
  float* flow = layout_.first ? At(values.scratch, layout_.scratch.flow) : values.grad_before;
  float* d_final = At(values.scratch, layout_.scratch.d_final);
  const Work work = WorkAt(values.scratch, layout_.scratch.work);
  StartFlow(values, d_final, flow);
  if (layout_.last) HeadBackwardWeight(values, d_final);
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardInput(values, layer, work, flow);
    LayerBackwardWeight(values, layer, work);
  }
  if (layout_.first) EmbeddingBackwardWeight(values, flow);
}

void Transformer::BackwardInput(const StageValues& values) {
  float* flow = layout_.first ? At(values.work, layout_.work_embed) : values.grad_before;
  StartFlow(values, At(values.work, layout_.work_final), flow);
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardInput(values, layer, WorkAt(values.work, layout_.work[layer]), flow);
  }
}

void Transformer::BackwardWeight(const StageValues& values) {
  if (layout_.last) HeadBackwardWeight(values, At(values.work, layout_.work_final));
  for (int layer = layout_.layers - 1; layer >= 0; --layer) {
    LayerBackwardWeight(values, layer, WorkAt(values.work, layout_.work[layer]));
  }
  if (layout_.first) EmbeddingBackwardWeight(values, At(values.work, layout_.work_embed));
}

// The gradient with respect to the output of the last layer: received, or the head's.
void Transformer::StartFlow(const StageValues& values, float* d_final, float* flow) {
  if (!layout_.last) {
    std::memcpy(flow, values.grad, layout_.grad_bytes);
    return;
  }
  const SavedHead saved = SavedHeadAt(values, Keep::kStash);
  float* d_normed = At(values.scratch, layout_.scratch.normed);
  cpu::CrossEntropyBackward({.rows = rows_,
                             .vocabulary = model_.vocab_size,
                             .row_stride = layout_.logits_stride,
                             .logits = saved.logits,
                             .target = values.targets,
                             .lse = saved.lse,
                             .scale = static_cast<float>(values.loss_scale)});
  workspace_->Run(products_.d_logits,
                  {.a = saved.logits, .b = Weight(values, HeadTensor()), .c = d_normed});
  cpu::LayerNormBackward({.rows = rows_,
                          .channels = model_.n_embd,
                          .dy = d_normed,
                          .x = Input(values, layout_.layers, Keep::kStash),
                          .gamma = Weight(values, FinalNormTensor(0)),
                          .mean = saved.mean,
                          .rstd = saved.rstd,
                          .dx = flow,
                          .dgamma = d_final,
                          .dbeta = d_final + model_.n_embd});
}

// flow: in, with respect to the output of the layer; out, to its input.
void Transformer::LayerBackwardInput(const StageValues& values, int layer, const Work& work,
                                     float* flow) {
  const int64_t c = model_.n_embd;
  const Saved saved = SavedAt(values, layer, Keep::kStash);
  float* d_normed = At(values.scratch, layout_.scratch.normed);
  const auto weight = [&](int tensor) { return Weight(values, LayerTensor(layer, tensor)); };
  const auto drop = [&](int operation, float* out) {
    cpu::Dropout({.batch = batch_,
                  .sequence_elements = int64_t{sequence_} * c,
                  .x = flow,
                  .out = out,
                  .dropout = Dropout(values, layer, operation, model_.resid_pdrop)});
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
  workspace_->Run(products_.d_mlp, {.a = work.d_mlp, .b = weight(kMlpWeight), .c = work.d_hidden});
  cpu::GeluBackward(
      {.n = rows_ * model_.n_inner, .x = saved.hidden, .dy = work.d_hidden, .dx = work.d_hidden});
  workspace_->Run(products_.d_hidden,
                  {.a = work.d_hidden, .b = weight(kHiddenWeight), .c = d_normed});
  normalize(saved.middle, weight(kNorm2Weight), saved.mean2, saved.rstd2, work.d_norm + 2 * c);

  drop(kProjDropout, work.d_proj);
  workspace_->Run(products_.d_proj, {.a = work.d_proj, .b = weight(kProjWeight), .c = d_normed});
  cpu::AttentionBackward({.shape = Heads(),
                          .qkv = saved.qkv,
                          .out = saved.context,
                          .lse = saved.lse,
                          .dout = d_normed,
                          .dqkv = work.d_qkv,
                          .dropout = Dropout(values, layer, kAttentionDropout, model_.attn_pdrop),
                          .scratch = workspace_->scratch()});
  workspace_->Run(products_.d_qkv, {.a = work.d_qkv, .b = weight(kQkvWeight), .c = d_normed});
  normalize(Input(values, layer, Keep::kStash), weight(kNorm1Weight), saved.mean1, saved.rstd1,
            work.d_norm);
}

void Transformer::LayerBackwardWeight(const StageValues& values, int layer, const Work& work) {
  const int64_t c = model_.n_embd;
  const Saved saved = SavedAt(values, layer, Keep::kStash);
  float* normed = At(values.scratch, layout_.scratch.normed);
  float* gelu = At(values.scratch, layout_.scratch.wide);
  const auto weight = [&](int tensor) { return Weight(values, LayerTensor(layer, tensor)); };
  const auto linear = [&](const int product[2], const float* input, const float* d_output,
                          int tensor) {
    const Tensor& matrix = LayerTensor(layer, tensor);
    workspace_->Run(product[static_cast<int>(values.update)],
                    {.a = input, .b = d_output, .c = Gradient(values, matrix)});
    cpu::BiasGradient({.rows = rows_,
                       .columns = matrix.cols,
                       .dy = d_output,
                       .dbias = Gradient(values, LayerTensor(layer, tensor + 1)),
                       .update = values.update});
  };

  cpu::GeluForward({.n = rows_ * model_.n_inner, .x = saved.hidden, .y = gelu});
  linear(products_.w_mlp, gelu, work.d_mlp, kMlpWeight);
  Normalize(saved.middle, weight(kNorm2Weight), weight(kNorm2Bias), saved.mean2, saved.rstd2,
            normed);
  linear(products_.w_hidden, normed, work.d_hidden, kHiddenWeight);
  linear(products_.w_proj, saved.context, work.d_proj, kProjWeight);
  Normalize(Input(values, layer, Keep::kStash), weight(kNorm1Weight), weight(kNorm1Bias),
            saved.mean1, saved.rstd1, normed);
  linear(products_.w_qkv, normed, work.d_qkv, kQkvWeight);

  const int norms[] = {kNorm1Weight, kNorm1Bias, kNorm2Weight, kNorm2Bias};
  for (int i = 0; i < 4; ++i) {
    Accumulate(values.update, c, work.d_norm + i * c,
               Gradient(values, LayerTensor(layer, norms[i])));
  }
}

void Transformer::HeadBackwardWeight(const StageValues& values, const float* d_final) {
  const SavedHead saved = SavedHeadAt(values, Keep::kStash);
  float* normed = At(values.scratch, layout_.scratch.normed);
  Normalize(Input(values, layout_.layers, Keep::kStash), Weight(values, FinalNormTensor(0)),
            Weight(values, FinalNormTensor(1)), saved.mean, saved.rstd, normed);
  workspace_->Run(products_.w_logits[static_cast<int>(values.update)],
                  {.a = saved.logits, .b = normed, .c = At(values.wgrad, HeadGradient())});
  Accumulate(values.update, model_.n_embd, d_final, Gradient(values, FinalNormTensor(0)));
  Accumulate(values.update, model_.n_embd, d_final + model_.n_embd,
             Gradient(values, FinalNormTensor(1)));
}

void Transformer::EmbeddingBackwardWeight(const StageValues& values, const float* d_embed) {
  const Tensor &wte = layout_.tensors[0], &wpe = layout_.tensors[1];
  if (values.update == Update::kSet) {
    // A micro-batch touches only the rows of its tokens and positions.
    cpu::Fill({.n = wte.elements(), .out = Gradient(values, wte)});
    cpu::Fill({.n = wpe.elements(), .out = Gradient(values, wpe)});
  }
  cpu::EmbeddingBackward({.batch = batch_,
                          .tokens = sequence_,
                          .channels = model_.n_embd,
                          .token = values.tokens,
                          .dout = d_embed,
                          .dwte = Gradient(values, wte),
                          .dwpe = Gradient(values, wpe),
                          .dropout = Dropout(values, 0, kEmbeddingDropout, model_.embd_pdrop)});
}

}  // namespace pp
