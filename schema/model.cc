#include "schema/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pp {
namespace {

// Hands out aligned places one after the other.
class Places {
 public:
  explicit Places(int64_t begin = 0) : end_(begin) {}

  // Room for `numbers` numbers of 4 bytes.
  int64_t Take(int64_t numbers) {
    const int64_t begin = (end_ + kAlign - 1) / kAlign * kAlign;
    end_ = begin + numbers * 4;
    return begin;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_;
};

// Adds the tensors of one stage, in model order.
class TensorList {
 public:
  TensorList(const ModelConfig& model, StageLayout* layout) : model_(model), layout_(*layout) {}

  void Embeddings() {
    const float std = model_.initializer_range;
    Add("wte.weight", 0, {model_.vocab_size, model_.n_embd}, 0, std);
    Add("wpe.weight", 1, {model_.n_positions, model_.n_embd}, 0, std);
  }

  void Layer(int layer) {
    const int64_t c = model_.n_embd, inner = model_.n_inner;
    const float std = model_.initializer_range;
    // As in GPT-2: the projections into the residual stream begin smaller, by their number.
    const float residual_std = std / std::sqrt(2.0f * static_cast<float>(model_.n_layer));
    const std::string h = fmt::format("h.{}.", layer);
    const int id = 2 + 12 * layer;
    Add(h + "ln_1.weight", id, Vector(c), 1, 0);
    Add(h + "ln_1.bias", id + 1, Vector(c), 0, 0);
    Add(h + "attn.c_attn.weight", id + 2, {c, 3 * c}, 0, std);
    Add(h + "attn.c_attn.bias", id + 3, Vector(3 * c), 0, 0);
    Add(h + "attn.c_proj.weight", id + 4, {c, c}, 0, residual_std);
    Add(h + "attn.c_proj.bias", id + 5, Vector(c), 0, 0);
    Add(h + "ln_2.weight", id + 6, Vector(c), 1, 0);
    Add(h + "ln_2.bias", id + 7, Vector(c), 0, 0);
    Add(h + "mlp.c_fc.weight", id + 8, {c, inner}, 0, std);
    Add(h + "mlp.c_fc.bias", id + 9, Vector(inner), 0, 0);
    Add(h + "mlp.c_proj.weight", id + 10, {inner, c}, 0, residual_std);
    Add(h + "mlp.c_proj.bias", id + 11, Vector(c), 0, 0);
  }

  void Final() {
    const int id = 2 + 12 * model_.n_layer;
    Add("ln_f.weight", id, Vector(model_.n_embd), 1, 0);
    Add("ln_f.bias", id + 1, Vector(model_.n_embd), 0, 0);
    const Shape shape = {model_.vocab_size, model_.n_embd};
    if (!model_.tie_word_embeddings) {
      Add("lm_head.weight", id + 2, shape, 0, model_.initializer_range);
    } else if (!layout_.first) {
      Add("wte.weight", 0, shape, 0, model_.initializer_range);
      // The first stage counts it.
      Tensor& copy = layout_.tensors.back();
      layout_.norm_blocks -= copy.blocks;
      layout_.parameters -= copy.elements();
      copy.blocks = 0;
    }
  }

  // The two accumulators of tied embeddings, and the sizes.
  void Finish() {
    if (model_.tie_word_embeddings && (layout_.first || layout_.last)) {
      layout_.tied_bytes = int64_t{model_.vocab_size} * model_.n_embd * 4;
      if (layout_.first) layout_.tied_lookup = layout_.tensors.front().wgrad;
      if (layout_.last) {
        layout_.tied_head =
            layout_.first ? wgrad_.Take(layout_.tied_bytes / 4) : layout_.tensors.back().wgrad;
      }
    }
    layout_.weights_bytes = weights_.end();
    layout_.wgrad_bytes = wgrad_.end();
    Places optimizer(weights_.end());
    layout_.optimizer_v = weights_.end() == 0 ? 0 : optimizer.Take(0);
    layout_.optimizer_bytes = weights_.end() == 0 ? 0 : layout_.optimizer_v + layout_.weights_bytes;
  }

 private:
  struct Shape {
    int64_t rows, cols;
    bool matrix = true;
  };
  static Shape Vector(int64_t numbers) { return {1, numbers, false}; }

  void Add(std::string name, int id, Shape shape, float mean, float std) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.rows = shape.rows;
    tensor.cols = shape.cols;
    tensor.id = id;
    tensor.matrix = shape.matrix;
    tensor.init_mean = mean;
    tensor.init_std = std;
    tensor.weight = weights_.Take(tensor.elements());
    tensor.wgrad = wgrad_.Take(tensor.elements());
    tensor.first_block = layout_.norm_blocks;
    tensor.blocks = (tensor.elements() + kNormBlock - 1) / kNormBlock;
    layout_.norm_blocks += tensor.blocks;
    layout_.parameters += tensor.elements();
    layout_.tensors.push_back(std::move(tensor));
  }

  const ModelConfig& model_;
  StageLayout& layout_;
  Places weights_, wgrad_;
};

void LayoutTensors(const Job& job, StageLayout* layout) {
  TensorList list(job.model, layout);
  if (layout->first) list.Embeddings();
  for (int i = 0; i < layout->layers; ++i) list.Layer(layout->first_layer + i);
  if (layout->last) list.Final();
  list.Finish();
}

// Norm blocks of the stages before this one.
int64_t NormBlocksBefore(const Job& job, const StageLayout& layout) {
  if (layout.first) return 0;
  StageLayout embeddings, layer;
  embeddings.first = true;
  layer.layers = 1;
  LayoutTensors(job, &embeddings);
  LayoutTensors(job, &layer);
  return embeddings.norm_blocks + layout.first_layer * layer.norm_blocks;
}

// The parts of a layer's stash but x.
LayerStash TakeStash(const Job& job, Places* places) {
  const int64_t n = job.tokens(), c = job.model.n_embd;
  LayerStash stash;
  stash.mean1 = places->Take(n);
  stash.rstd1 = places->Take(n);
  stash.qkv = places->Take(n * 3 * c);
  stash.lse = places->Take(n * job.model.n_head);
  stash.context = places->Take(n * c);
  stash.middle = places->Take(n * c);
  stash.mean2 = places->Take(n);
  stash.rstd2 = places->Take(n);
  stash.hidden = places->Take(n * job.model.n_inner);
  return stash;
}

HeadStash TakeHead(const Job& job, int64_t logits_stride, Places* places) {
  const int64_t n = job.tokens();
  HeadStash head;
  head.mean = places->Take(n);
  head.rstd = places->Take(n);
  head.statistics = places->Take(2 * n);
  head.logits = places->Take(n * logits_stride);
  return head;
}

LayerWork TakeWork(const Job& job, Places* places) {
  const int64_t n = job.tokens(), c = job.model.n_embd;
  LayerWork work;
  work.d_mlp = places->Take(n * c);
  work.d_hidden = places->Take(n * job.model.n_inner);
  work.d_proj = places->Take(n * c);
  work.d_qkv = places->Take(n * 3 * c);
  work.d_norm = places->Take(4 * c);
  return work;
}

void LayoutStash(const Job& job, StageLayout* layout) {
  const int64_t nc = job.tokens() * job.model.n_embd;
  Places places;
  const bool embedded = layout->first && (layout->layers > 0 || layout->last);
  int64_t x = embedded ? places.Take(nc) : -1;
  for (int i = 0; i < layout->layers; ++i) {
    layout->stash.push_back(TakeStash(job, &places));
    layout->stash.back().x = x;
    const bool kept = i + 1 < layout->layers || layout->last;
    x = kept ? places.Take(nc) : -1;
  }
  if (layout->last) {
    layout->head_stash = TakeHead(job, layout->logits_stride, &places);
    layout->head_stash.x = x;
  }
  layout->stash_bytes = places.end();
}

void LayoutWork(const Job& job, StageLayout* layout) {
  Places places;
  for (int i = 0; i < layout->layers; ++i) layout->work.push_back(TakeWork(job, &places));
  if (layout->first) layout->work_embed = places.Take(job.tokens() * job.model.n_embd);
  if (layout->last) layout->work_final = places.Take(2 * job.model.n_embd);
  layout->work_bytes = places.end();
}

void LayoutScratch(const Job& job, StageLayout* layout) {
  const int64_t nc = job.tokens() * job.model.n_embd;
  Scratch& scratch = layout->scratch;
  Places common;
  scratch.kernels = common.Take(KernelBytes(job) / 4);
  scratch.normed = common.Take(nc);
  scratch.wide = common.Take(job.tokens() * job.model.n_inner);
  scratch.flow = common.Take(nc);

  Places backward(common.end());
  scratch.work = TakeWork(job, &backward);
  scratch.d_final = backward.Take(2 * job.model.n_embd);
  layout->scratch_bytes = backward.end();

  Places drop(common.end());
  scratch.stash = TakeStash(job, &drop);
  scratch.flow2 = drop.Take(nc);
  if (layout->last) scratch.head = TakeHead(job, layout->logits_stride, &drop);
  layout->drop_scratch_bytes = std::max(backward.end(), drop.end());
}

}  // namespace

StageLayout LayoutStage(const Job& job, int stage) {
  PP_CHECK(stage >= 0 && stage < job.stages());
  StageLayout layout;
  layout.stage = stage;
  layout.first = stage == 0;
  layout.last = stage == job.stages() - 1;
  for (int s = 0; s < stage; ++s) layout.first_layer += job.layers_per_stage[s];
  layout.layers = job.layers_per_stage[stage];
  LayoutTensors(job, &layout);
  layout.first_norm_block = NormBlocksBefore(job, layout);

  const int64_t n = job.tokens();
  if (layout.first) layout.tokens_bytes = n * 4;
  if (layout.last) {
    layout.targets_bytes = n * 4;
    layout.loss_bytes = 8;
    layout.logits_stride = (job.model.vocab_size + 15) / 16 * 16;
  } else {
    layout.act_bytes = n * job.model.n_embd * 4;
    layout.grad_bytes = layout.act_bytes;
  }
  LayoutStash(job, &layout);
  LayoutWork(job, &layout);
  LayoutScratch(job, &layout);
  return layout;
}

int64_t NormBlocks(const Job& job) {
  const StageLayout last = LayoutStage(job, job.stages() - 1);
  return last.first_norm_block + last.norm_blocks;
}

int64_t KernelBytes(const Job& job) {
  // Matrix products: 384 steps of k of 256 + 32 rows, each number as three of 16 bits.
  constexpr int64_t kMatmulFloats = 384 * (256 + 32) * 3 / 2;
  // Attention, of one head: its keys and values forward, backward five such things of 512 keys; 64
  // queries and the scores of those.
  const auto lines = [](int64_t floats) { return (floats + 15) / 16 * 16; };
  const int64_t tokens = (int64_t{job.sequence_length} + 63) / 32 * 32;
  const int64_t width = (int64_t{job.model.n_embd / job.model.n_head} + 31) / 32 * 32;
  const int64_t keys = std::min<int64_t>(tokens, 512 + 32), band = keys + 16;
  const int64_t attention =
      std::max(2 * tokens, 5 * keys) * width + 2 * 64 * (width + band) + lines(band + 64) + tokens;
  return 4 * std::max(kMatmulFloats, attention);
}

}  // namespace pp
