// Transformer, first part: where everything lies. The other parts are transformer_forward.cc
// and transformer_backward.cc.
#include "runtime/model/transformer_parts.h"

namespace pp {

using kernels::Operands;
using kernels::Update;
using kernels::WithBias;
using kernels::WithResidual;

namespace cpu = kernels::cpu;

Workspace::Workspace(const Job& job, int threads)
    : matmul_(threads), helpers_((threads - 1) * KernelBytes(job) + kAlign) {}

void* Workspace::helpers() {
  const auto address = reinterpret_cast<uintptr_t>(helpers_.data());
  return reinterpret_cast<void*>((address + kAlign - 1) / kAlign * kAlign);
}

Transformer::Transformer(const Job& job, int stage, uint64_t seed, Workspace* workspace)
    : layout_(LayoutStage(job, stage)),
      model_(job.model),
      batch_(job.micro_batch_size),
      sequence_(job.sequence_length),
      rows_(job.tokens()),
      seed_(seed),
      workspace_(workspace) {
  PP_CHECK(cpu::Matmul::ScratchBytes() <= static_cast<size_t>(KernelBytes(job)));
  PP_CHECK(cpu::AttentionScratchBytes(Heads()) <= static_cast<size_t>(KernelBytes(job)));
  PrepareProducts();
}

void Transformer::Multiply(const StageCall& call, int product, kernels::MatmulArgs args) {
  args.scratch = At(call.scratch, layout_.scratch.kernels);
  args.helpers = workspace_->helpers();
  workspace_->matmul().Run(product, args);
}

void Transformer::PrepareProducts() {
  const int64_t n = rows_, c = model_.n_embd, inner = model_.n_inner;
  // A residual without dropout is added by the product itself.
  const auto fused = model_.resid_pdrop == 0 ? WithResidual::kYes : WithResidual::kNo;
  const auto forward = [&](int64_t columns, int64_t k, WithResidual residual) {
    return workspace_->matmul().Prepare(
        {.m = n, .n = columns, .k = k, .bias = WithBias::kYes, .residual = residual});
  };
  const auto to_input = [&](int64_t columns, int64_t k) {
    return workspace_->matmul().Prepare({.m = n, .n = columns, .k = k, .operands = Operands::kNT});
  };
  const auto to_weight = [&](int64_t in, int64_t out, int ids[2]) {
    for (const Update update : {Update::kSet, Update::kAdd}) {
      ids[static_cast<int>(update)] = workspace_->matmul().Prepare(
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
    products_.logits = workspace_->matmul().Prepare(
        {.m = n, .n = vocabulary, .k = c, .operands = Operands::kNT, .ldc = stride});
    products_.d_logits =
        workspace_->matmul().Prepare({.m = n, .n = c, .k = vocabulary, .lda = stride});
    for (const Update update : {Update::kSet, Update::kAdd}) {
      products_.w_logits[static_cast<int>(update)] =
          workspace_->matmul().Prepare({.m = vocabulary,
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

kernels::DropoutKey Transformer::Dropout(const StageCall& call, int layer, int operation,
                                         float p) const {
  return {.seed = seed_,
          .site = static_cast<uint32_t>((layout_.first_layer + layer) * 8 + operation),
          .first_sequence = static_cast<uint32_t>(call.first_sequence),
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

const float* Transformer::Weight(const StageCall& call, const Tensor& tensor) {
  return reinterpret_cast<const float*>(call.weights + tensor.weight);
}

float* Transformer::Gradient(const StageCall& call, const Tensor& tensor) {
  return At(call.wgrad, tensor.wgrad);
}

Transformer::Saved Transformer::SavedAt(const StageCall& call, int layer, Keep keep) const {
  std::byte* base = keep == Keep::kStash ? call.stash : call.scratch;
  const LayerStash& places = keep == Keep::kStash ? layout_.stash[layer] : layout_.scratch.stash;
  return {At(base, places.mean1), At(base, places.rstd1),   At(base, places.qkv),
          At(base, places.lse),   At(base, places.context), At(base, places.middle),
          At(base, places.mean2), At(base, places.rstd2),   At(base, places.hidden)};
}

Transformer::SavedHead Transformer::SavedHeadAt(const StageCall& call, Keep keep) const {
  std::byte* base = keep == Keep::kStash ? call.stash : call.scratch;
  const HeadStash& places = keep == Keep::kStash ? layout_.head_stash : layout_.scratch.head;
  return {At(base, places.mean), At(base, places.rstd), At(base, places.statistics),
          At(base, places.logits)};
}

Transformer::Work Transformer::WorkAt(std::byte* base, const LayerWork& places) {
  return {At(base, places.d_mlp), At(base, places.d_hidden), At(base, places.d_proj),
          At(base, places.d_qkv), At(base, places.d_norm)};
}

// Where the residual stream lies before `layer`; before layer `layers` is after the last. In
// scratch two places take turns.
float* Transformer::Stream(const StageCall& call, int layer, Keep keep) const {
  if (layer == layout_.layers && !layout_.last) return call.act;
  if (keep == Keep::kScratch) {
    return At(call.scratch, layer % 2 == 0 ? layout_.scratch.flow : layout_.scratch.flow2);
  }
  const bool end = layer == layout_.layers;
  return At(call.stash, end ? layout_.head_stash.x : layout_.stash[layer].x);
}

const float* Transformer::Input(const StageCall& call, int layer, Keep keep) const {
  return layer == 0 && !layout_.first ? call.act_before : Stream(call, layer, keep);
}

}  // namespace pp
