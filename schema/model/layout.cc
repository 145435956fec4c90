// From a model's list of operators to the tensors of a stage; placing.cc finds the other places.
#include "schema/model/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schema/model/families.h"
#include "schema/model/placing.h"

namespace pp {
namespace {

// Tensors of the model itself, or of adapters.
enum class Whose : uint8_t { kModel, kAdapters };
int Tensors(const std::vector<Operator>& operators, Whose whose) {
  int tensors = 0;
  for (const Operator& op : operators)
    for (const Parameter& parameter : op.parameters)
      if (parameter.adapter == (whose == Whose::kAdapters)) ++tensors;
  return tensors;
}

bool IsTied(const ModelTable& table) {
  for (const Operator& op : table.last)
    for (const Parameter& parameter : op.parameters)
      if (parameter.tied) return true;
  return false;
}

// Norm blocks of a parameter, and of those of operators.
int64_t BlocksOf(const Parameter& parameter) {
  if (!parameter.trainable) return 0;
  return (parameter.rows * parameter.cols + kNormBlock - 1) / kNormBlock;
}
int64_t BlocksOf(const std::vector<Operator>& operators) {
  int64_t blocks = 0;
  for (const Operator& op : operators)
    for (const Parameter& parameter : op.parameters) blocks += BlocksOf(parameter);
  return blocks;
}

// One peer's part of the model. The last one is kept, as most callers ask for stage after stage.
const ModelTable& PeersTable(const Job& job) {
  struct Last {
    ModelConfig model;
    Lora lora;
    int tp = 0;
    ModelTable table;
  };
  thread_local Last last;
  if (last.tp != job.tp || last.lora != job.lora || last.model != job.model)
    last = {job.model, job.lora, job.tp, PartOf(TableOf(job), job.tp)};
  return last.table;
}

// Lists the operators of a stage and its tensors, in model order.
class Lister {
 public:
  Lister(const ModelTable& table, Dtype dtype, StageLayout* layout)
      : table_(table), dtype_(dtype), layout_(*layout) {}

  void Run(const Job& job) {
    const int before = Tensors(table_.first, Whose::kModel);
    const int each = Tensors(table_.layer, Whose::kModel);
    if (layout_.first) Add(table_.first, -1, 0);
    for (int i = 0; i < layout_.layers; ++i) {
      const int layer = layout_.first_layer + i;
      Add(table_.layer, layer, before + each * layer);
    }
    if (layout_.last) Add(table_.last, -1, before + each * job.model.layers);
    if (job.lora.given())
      AddAdapters(before + each * job.model.layers + Tensors(table_.last, Whose::kModel));
    if (layout_.first && IsTied(table_) && layout_.tensors.front().trainable()) {
      layout_.tied_bytes = layout_.tensors.front().bytes();
      layout_.tied_lookup = layout_.tensors.front().wgrad;
    }
    layout_.weights_bytes = weights_.end();
    layout_.wgrad_bytes = wgrad_.end();
    layout_.rounded_bytes = (rounded_.end() + kAlign - 1) / kAlign * kAlign;
    const int64_t trained = std::max<int64_t>(0, weights_.end() - layout_.trained);
    Places optimizer(trained);
    layout_.optimizer_v = trained == 0 ? 0 : optimizer.Take(0);
    layout_.optimizer_bytes = trained == 0 ? 0 : layout_.optimizer_v + trained;
  }

 private:
  // Behind all that is frozen, of which the weights have no gap; `id` is that of the model's first.
  void AddAdapters(int id) {
    layout_.trained = weights_.Take(0);
    const int each = Tensors(table_.layer, Whose::kAdapters);
    int layer = -1, next = 0;
    for (StageOperator& placed : layout_.operators) {
      if (placed.layer != layer) next = id + each * placed.layer;
      layer = placed.layer;
      for (size_t i = 0; i < placed.op.parameters.size(); ++i) {
        const Parameter& parameter = placed.op.parameters[i];
        if (parameter.adapter)
          placed.parameters[i] = Add(parameter, PrefixOf(layer), next++, /*by_product=*/true);
      }
    }
  }

  std::string PrefixOf(int layer) const {
    return layer < 0 ? "" : fmt::format(fmt::runtime(table_.layer_prefix), layer);
  }

  void Add(const std::vector<Operator>& operators, int layer, int id) {
    for (const Operator& op : operators) {
      StageOperator placed{.op = op, .layer = layer, .group = group_};
      const bool by_product = op.kind == OperatorKind::kLinear;
      for (const Parameter& parameter : op.parameters) {
        StageOperator::Weights& weights = placed.parameters.emplace_back();
        if (!parameter.adapter) weights = Add(parameter, PrefixOf(layer), id++, by_product);
      }
      layout_.operators.push_back(std::move(placed));
    }
    ++group_;
  }

  // How many elements of the first peer's part no parameter of the model is in.
  int64_t Padding(const Parameter& parameter) const {
    if (parameter.cut != Cut::kOut) return 0;
    int64_t padding = 0;
    for (const Piece& piece : parameter.pieces)
      padding += std::max<int64_t>(PartOf(piece, layout_.tp) - piece.size, 0);
    return padding * (parameter.matrix ? parameter.cols : 1);
  }

  // A product reads it, in the activations' type.
  void Round(Tensor* tensor) {
    if (dtype_ != Dtype::kFp32) tensor->rounded = rounded_.Take(tensor->elements(), dtype_);
  }

  StageOperator::Weights Add(const Parameter& parameter, const std::string& prefix, int id,
                             bool by_product) {
    if (parameter.tied && layout_.first) {
      // One tensor, and two accumulators.
      Tensor& tensor = layout_.tensors.front();
      if (parameter.trainable) layout_.tied_head = wgrad_.Take(tensor.elements());
      if (by_product) Round(&tensor);
      return {tensor.weight, layout_.tied_head, tensor.rounded};
    }
    std::vector<Piece> pieces = parameter.pieces;
    for (Piece& piece : pieces) piece.name = prefix + piece.name;
    Tensor tensor{.pieces = std::move(pieces),
                  .across = parameter.across,
                  .cut = parameter.cut,
                  .rows = parameter.rows,
                  .cols = parameter.cols,
                  .id = parameter.tied ? 0 : id,
                  .matrix = parameter.matrix,
                  .init_mean = parameter.mean,
                  .init_std = parameter.std,
                  .adapter = parameter.adapter};
    tensor.weight = weights_.Take(tensor.elements());
    tensor.wgrad = parameter.trainable ? wgrad_.Take(tensor.elements()) : -1;
    tensor.first_block = layout_.norm_blocks;
    if (parameter.tied && parameter.trainable) {
      layout_.tied_bytes = tensor.bytes();  // the first stage counts it
      layout_.tied_head = tensor.wgrad;
    } else if (!parameter.tied) {
      tensor.blocks = BlocksOf(parameter);
      layout_.norm_blocks += tensor.blocks;
      const int64_t elements = tensor.elements() - Padding(parameter);
      layout_.parameters += elements;
      if (parameter.trainable) layout_.trained_parameters += elements;
    }
    if (by_product) Round(&tensor);
    const StageOperator::Weights weights{tensor.weight, tensor.wgrad, tensor.rounded};
    layout_.tensors.push_back(std::move(tensor));
    return weights;
  }

  const ModelTable& table_;
  const Dtype dtype_;
  StageLayout& layout_;
  Places weights_, wgrad_, rounded_;
  int group_ = 0;
};

}  // namespace

StageLayout LayoutStage(const Job& job, int stage) {
  PP_CHECK(stage >= 0 && stage < job.stages());
  const ModelTable& table = PeersTable(job);
  StageLayout layout;
  layout.stage = stage;
  layout.first = stage == 0;
  layout.last = stage == job.stages() - 1;
  for (int s = 0; s < stage; ++s) layout.first_layer += job.layers_per_stage[s];
  layout.layers = job.layers_per_stage[stage];
  layout.tp = job.tp;
  layout.stream_tokens = job.stream_tokens();
  Lister(table, job.dtype, &layout).Run(job);
  if (!layout.first)
    layout.first_norm_block = BlocksOf(table.first) + layout.first_layer * BlocksOf(table.layer);

  const int64_t n = job.tokens();
  if (layout.first) layout.tokens_bytes = n * 4;
  if (layout.last) {
    layout.targets_bytes = n * 4;
    layout.loss_bytes = 8;
  } else {
    layout.act_bytes = job.stream_tokens() * job.model.hidden_size * BytesOf(job.dtype);
    layout.grad_bytes = layout.act_bytes;
  }
  PlaceOperators(job, &layout);
  return layout;
}

int64_t NormBlocks(const Job& job) {
  const StageLayout last = LayoutStage(job, job.stages() - 1);
  return job.tp * (last.first_norm_block + last.norm_blocks);
}

int64_t ExchangeBytes(DeviceKind backend, int64_t members, int64_t shard) {
  return (members - 1) *
         std::min(MostExchangePiece(backend), (shard + kAlign - 1) / kAlign * kAlign);
}

std::vector<PeerExchange> PeerExchanges(const Job& job) {
  if (job.tp == 1) return {};
  std::set<PeerExchange> all;
  for (int shape = 0; job.shapes.given() && shape < job.shapes.count(); ++shape)
    for (const PeerExchange& exchange : PeerExchanges(job.OfShape(shape))) all.insert(exchange);
  if (job.shapes.given()) return {all.begin(), all.end()};
  const int64_t n = job.tokens();
  all.insert({PeerWork::kSum, 3 * job.tp * n});
  const auto add = [&](PeerWork with_shares, int64_t numbers) {
    all.insert({job.sequence_parallel ? with_shares : PeerWork::kSum, numbers, job.dtype});
  };
  const ModelTable table = TableOf(job);
  for (const auto* operators : {&table.first, &table.layer, &table.last})
    for (const Operator& op : *operators) {
      if (op.kind == OperatorKind::kEmbedding) add(PeerWork::kScatter, n * op.out);
      if (op.kind == OperatorKind::kLinear && op.cut == Cut::kIn)
        add(PeerWork::kScatter, n * op.out);
      if (op.kind == OperatorKind::kLinear && op.cut == Cut::kOut)
        add(PeerWork::kScatter, n * op.in);
      for (const Adapter& adapter : op.adapters)
        all.insert({PeerWork::kSum, n * adapter.rank, job.dtype});
      if (op.kind == OperatorKind::kHeadNorm && op.trains())
        all.insert({PeerWork::kSum, 2 * op.head_dim});
      if (!job.sequence_parallel) continue;
      if (op.kind == OperatorKind::kEmbedding || op.kind == OperatorKind::kNorm ||
          op.kind == OperatorKind::kResidual)
        all.insert({PeerWork::kGather, n * op.out, job.dtype});
      if (op.kind == OperatorKind::kNorm && op.trains())
        all.insert({PeerWork::kSum, static_cast<int64_t>(op.parameters.size()) * op.out});
    }
  return {all.begin(), all.end()};
}

}  // namespace pp
