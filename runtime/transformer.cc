#include "runtime/transformer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/bias.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gelu.h"
#include "kernels/norm.h"
#include "kernels/residual.h"

namespace pp {
namespace {

namespace cpu = kernels::cpu;
using kernels::Operands;
using kernels::Update;
using kernels::WithBias;
using kernels::WithResidual;

// A layer's tensors, in model order.
enum : int {
  kNorm1Weight,
  kNorm1Bias,
  kQkvWeight,
  kQkvBias,
  kProjWeight,
  kProjBias,
  kNorm2Weight,
  kNorm2Bias,
  kHiddenWeight,
  kHiddenBias,
  kMlpWeight,
  kMlpBias,
  kLayerTensors
};

// Operations with dropout; with the layer's number they make a site. The embedding counts as one
// of layer 0.
enum : int { kAttentionDropout = 0, kProjDropout = 1, kMlpDropout = 2, kEmbeddingDropout = 7 };

float* At(std::byte* base, int64_t offset) { return reinterpret_cast<float*>(base + offset); }

// accumulator (= or +=) part.
void Accumulate(Update update, int64_t n, const float* part, float* accumulator) {
  if (update == Update::kSet) {
    std::memcpy(accumulator, part, n * sizeof(float));
  } else {
    cpu::Add({.n = n, .x = part, .out = accumulator});
  }
}

}  // namespace

int Workspace::Prepare(const kernels::MatmulShape& shape) {
  const int id = matmul_.Prepare(shape);
  Reserve(matmul_.ScratchBytes());
  return id;
}

void Workspace::Reserve(size_t bytes) {
  if (memory_.size() < bytes + kAlign) memory_.resize(bytes + kAlign);
}

void* Workspace::scratch() {
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  return reinterpret_cast<void*>((address + kAlign - 1) / kAlign * kAlign);
}

void Workspace::Run(int id, kernels::MatmulArgs args) {
  args.scratch = scratch();
  matmul_.Run(id, args);
}

// LayerStash as pointers.
struct Transformer::Saved {
  float *mean1, *rstd1, *qkv, *lse, *context, *middle, *mean2, *rstd2, *hidden;
};

struct Transformer::SavedHead {
  float *mean, *rstd, *lse, *logits;
};

// LayerWork as pointers.
struct Transformer::Work {
  float *d_mlp, *d_hidden, *d_proj, *d_qkv, *d_norm;
};

Transformer::Transformer(const Job& job, int stage, uint64_t seed, Workspace* workspace)
    : layout_(LayoutStage(job, stage)),
      model_(job.model),
      batch_(job.micro_batch_size),
      sequence_(job.sequence_length),
      rows_(job.tokens()),
      seed_(seed),
      workspace_(workspace) {
  PrepareProducts();
  workspace_->Reserve(cpu::AttentionScratchBytes(Heads(), workspace_->threads()));
}

void Transformer::PrepareProducts() {
  const int64_t n = rows_, c = model_.n_embd, inner = model_.n_inner;
  // A residual without dropout is added by the product itself.
  const auto fused = model_.resid_pdrop == 0 ? WithResidual::kYes : WithResidual::kNo;
  const auto forward = [&](int64_t columns, int64_t k, WithResidual residual) {
    return workspace_->Prepare(
        {.m = n, .n = columns, .k = k, .bias = WithBias::kYes, .residual = residual});
  };
  const auto to_input = [&](int64_t columns, int64_t k) {
    return workspace_->Prepare({.m = n, .n = columns, .k = k, .operands = Operands::kNT});
  };
  const auto to_weight = [&](int64_t in, int64_t out, int ids[2]) {
    for (const Update update : {Update::kSet, Update::kAdd}) {
      ids[static_cast<int>(update)] = workspace_->Prepare(
          {.m = in, .n = out, .k = n, .operands = Operands::kTN, .update = update});
    }
  };
  if (layout_.layers > 0) {
    products_.qkv = forward(3 * c, c, WithResidual::kNo);
    products_.proj = forward(c, c, fused);
    products_.hidden = forward(inner, c, WithResidual::kNo);
    products_.mlp = forward(c, inner, fused);
    products_.d_mlp = to_input(inner, c);
    products_.d_hidden = to_input(c, inner);
    products_.d_proj = to_input(c, c);
    products_.d_qkv = to_input(c, 3 * c);
    to_weight(c, 3 * c, products_.w_qkv);
    to_weight(c, c, products_.w_proj);
    to_weight(c, inner, products_.w_hidden);
    to_weight(inner, c, products_.w_mlp);
  }
  if (layout_.last) {
    const int64_t vocabulary = model_.vocab_size, stride = layout_.logits_stride;
    products_.logits = workspace_->Prepare(
        {.m = n, .n = vocabulary, .k = c, .operands = Operands::kNT, .ldc = stride});
    products_.d_logits = workspace_->Prepare({.m = n, .n = c, .k = vocabulary, .lda = stride});
    for (const Update update : {Update::kSet, Update::kAdd}) {
      products_.w_logits[static_cast<int>(update)] = workspace_->Prepare({.m = vocabulary,
                                                                          .n = c,
                                                                          .k = n,
                                                                          .operands = Operands::kTN,
                                                                          .update = update,
                                                                          .lda = stride});
    }
  }
}

kernels::AttentionShape Transformer::Heads() const {
  return {batch_, sequence_, model_.n_head, model_.n_embd / model_.n_head};
}

kernels::DropoutKey Transformer::Dropout(const StageValues& values, int layer, int operation,
                                         float p) const {
  return {.seed = seed_,
          .site = static_cast<uint32_t>((layout_.first_layer + layer) * 8 + operation),
          .first_sequence = static_cast<uint32_t>(values.first_sequence),
          .p = p};
}

const Tensor& Transformer::LayerTensor(int layer, int tensor) const {
  return layout_.tensors[(layout_.first ? 2 : 0) + kLayerTensors * layer + tensor];
}

// 0: weight, 1: bias.
const Tensor& Transformer::FinalNormTensor(int index) const {
  return layout_.tensors[(layout_.first ? 2 : 0) + kLayerTensors * layout_.layers + index];
}

const Tensor& Transformer::HeadTensor() const {
  return model_.tie_word_embeddings && layout_.first ? layout_.tensors.front()
                                                     : layout_.tensors.back();
}

int64_t Transformer::HeadGradient() const {
  return layout_.tied_head >= 0 ? layout_.tied_head : HeadTensor().wgrad;
}

const float* Transformer::Weight(const StageValues& values, const Tensor& tensor) {
  return reinterpret_cast<const float*>(values.weights + tensor.weight);
}

float* Transformer::Gradient(const StageValues& values, const Tensor& tensor) {
  return At(values.wgrad, tensor.wgrad);
}

Transformer::Saved Transformer::SavedAt(const StageValues& values, int layer, Keep keep) const {
  std::byte* base = keep == Keep::kStash ? values.stash : values.scratch;
  const LayerStash& places = keep == Keep::kStash ? layout_.stash[layer] : layout_.scratch.stash;
  return {At(base, places.mean1), At(base, places.rstd1),   At(base, places.qkv),
          At(base, places.lse),   At(base, places.context), At(base, places.middle),
          At(base, places.mean2), At(base, places.rstd2),   At(base, places.hidden)};
}

Transformer::SavedHead Transformer::SavedHeadAt(const StageValues& values, Keep keep) const {
  std::byte* base = keep == Keep::kStash ? values.stash : values.scratch;
  const HeadStash& places = keep == Keep::kStash ? layout_.head_stash : layout_.scratch.head;
  return {At(base, places.mean), At(base, places.rstd), At(base, places.lse),
          At(base, places.logits)};
}

Transformer::Work Transformer::WorkAt(std::byte* base, const LayerWork& places) {
  return {At(base, places.d_mlp), At(base, places.d_hidden), At(base, places.d_proj),
          At(base, places.d_qkv), At(base, places.d_norm)};
}

// Where the residual stream lies before `layer`; before layer `layers` is after the last. In
// scratch two places take turns.
float* Transformer::Stream(const StageValues& values, int layer, Keep keep) const {
  if (layer == layout_.layers && !layout_.last) return values.act;
  if (keep == Keep::kScratch) {
    return At(values.scratch, layer % 2 == 0 ? layout_.scratch.flow : layout_.scratch.flow2);
  }
  const bool end = layer == layout_.layers;
  return At(values.stash, end ? layout_.head_stash.x : layout_.stash[layer].x);
}

const float* Transformer::Input(const StageValues& values, int layer, Keep keep) const {
  return layer == 0 && !layout_.first ? values.act_before : Stream(values, layer, keep);
}

void Transformer::Forward(const StageValues& values) { RunForward(values, Keep::kStash); }

void Transformer::ForwardDrop(const StageValues& values) { RunForward(values, Keep::kScratch); }

void Transformer::Recompute(const StageValues& values) {
  double loss = 0;
  StageValues again = values;
  again.act = nullptr;
  again.loss = &loss;
  RunForward(again, Keep::kStash);
}

void Transformer::RunForward(const StageValues& values, Keep keep) {
  if (layout_.first && Stream(values, 0, keep) != nullptr) {
    cpu::EmbeddingForward({.batch = batch_,
                           .tokens = sequence_,
                           .channels = model_.n_embd,
                           .token = values.tokens,
                           .wte = Weight(values, layout_.tensors[0]),
                           .wpe = Weight(values, layout_.tensors[1]),
                           .out = Stream(values, 0, keep),
                           .dropout = Dropout(values, 0, kEmbeddingDropout, model_.embd_pdrop)});
  } else if (!layout_.first && !layout_.last && layout_.layers == 0 && values.act != nullptr) {
    std::memcpy(values.act, values.act_before, layout_.act_bytes);
  }
  for (int layer = 0; layer < layout_.layers; ++layer) ForwardLayer(values, layer, keep);
  if (layout_.last) ForwardHead(values, keep);
}

void Transformer::ForwardLayer(const StageValues& values, int layer, Keep keep) {
  const Saved saved = SavedAt(values, layer, keep);
  const float* x = Input(values, layer, keep);
  float* normed = At(values.scratch, layout_.scratch.normed);
  const auto weight = [&](int tensor) { return Weight(values, LayerTensor(layer, tensor)); };

  Normalize(x, weight(kNorm1Weight), weight(kNorm1Bias), saved.mean1, saved.rstd1, normed);
  workspace_->Run(products_.qkv,
                  {.a = normed, .b = weight(kQkvWeight), .c = saved.qkv, .bias = weight(kQkvBias)});
  cpu::AttentionForward({.shape = Heads(),
                         .qkv = saved.qkv,
                         .out = saved.context,
                         .lse = saved.lse,
                         .dropout = Dropout(values, layer, kAttentionDropout, model_.attn_pdrop),
                         .scratch = workspace_->scratch()});
  AddToStream(values, {.product = products_.proj,
                       .input = saved.context,
                       .weight = weight(kProjWeight),
                       .bias = weight(kProjBias),
                       .stream = x,
                       .out = saved.middle,
                       .dropout = Dropout(values, layer, kProjDropout, model_.resid_pdrop)});

  Normalize(saved.middle, weight(kNorm2Weight), weight(kNorm2Bias), saved.mean2, saved.rstd2,
            normed);
  workspace_->Run(
      products_.hidden,
      {.a = normed, .b = weight(kHiddenWeight), .c = saved.hidden, .bias = weight(kHiddenBias)});
  float* out = Stream(values, layer + 1, keep);
  if (out == nullptr) return;  // a recomputation, whose last output nobody needs
  float* gelu = At(values.scratch, layout_.scratch.wide);
  cpu::GeluForward({.n = rows_ * model_.n_inner, .x = saved.hidden, .y = gelu});
  AddToStream(values, {.product = products_.mlp,
                       .input = gelu,
                       .weight = weight(kMlpWeight),
                       .bias = weight(kMlpBias),
                       .stream = saved.middle,
                       .out = out,
                       .dropout = Dropout(values, layer, kMlpDropout, model_.resid_pdrop)});
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
void Transformer::AddToStream(const StageValues& values, const Branch& branch) {
  if (branch.dropout.p == 0) {
    workspace_->Run(branch.product, {.a = branch.input,
                                     .b = branch.weight,
                                     .c = branch.out,
                                     .bias = branch.bias,
                                     .residual = branch.stream});
    return;
  }
  float* product = At(values.scratch, layout_.scratch.normed);
  workspace_->Run(branch.product,
                  {.a = branch.input, .b = branch.weight, .c = product, .bias = branch.bias});
  cpu::Residual({.batch = batch_,
                 .sequence_elements = int64_t{sequence_} * model_.n_embd,
                 .x = branch.stream,
                 .y = product,
                 .out = branch.out,
                 .dropout = branch.dropout});
}

void Transformer::ForwardHead(const StageValues& values, Keep keep) {
  const SavedHead saved = SavedHeadAt(values, keep);
  float* normed = At(values.scratch, layout_.scratch.normed);
  Normalize(Input(values, layout_.layers, keep), Weight(values, FinalNormTensor(0)),
            Weight(values, FinalNormTensor(1)), saved.mean, saved.rstd, normed);
  workspace_->Run(products_.logits,
                  {.a = normed, .b = Weight(values, HeadTensor()), .c = saved.logits});
  cpu::CrossEntropyForward({.rows = rows_,
                            .vocabulary = model_.vocab_size,
                            .row_stride = layout_.logits_stride,
                            .logits = saved.logits,
                            .target = values.targets,
                            .lse = saved.lse,
                            .loss = values.loss});
}

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
