// From a model's list of operators to the tensors of a stage and the place of every byte.
#include "schema/model/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "schema/model/families.h"

namespace pp {
namespace {

// Hands out aligned places one after the other.
class Places {
 public:
  explicit Places(int64_t begin = 0) : end_(begin), most_(begin) {}

  // Room for `numbers` numbers of 4 bytes.
  int64_t Take(int64_t numbers) {
    const int64_t begin = (end_ + kAlign - 1) / kAlign * kAlign;
    end_ = begin + numbers * 4;
    most_ = std::max(most_, end_);
    return begin;
  }
  // What was taken since `end` was the end is free again.
  void BackTo(int64_t end) { end_ = end; }

  int64_t end() const { return end_; }
  int64_t most() const { return most_; }

 private:
  int64_t end_, most_;
};

int Tensors(const std::vector<Operator>& operators) {
  int tensors = 0;
  for (const Operator& op : operators) tensors += static_cast<int>(op.parameters.size());
  return tensors;
}

bool IsTied(const ModelTable& table) {
  for (const Operator& op : table.last)
    for (const Parameter& parameter : op.parameters)
      if (parameter.tied) return true;
  return false;
}

// Lists the operators of a stage and its tensors, in model order.
class Lister {
 public:
  Lister(const ModelTable& table, StageLayout* layout) : table_(table), layout_(*layout) {}

  void Run(int layers_of_model) {
    const int before = Tensors(table_.first), each = Tensors(table_.layer);
    if (layout_.first) Add(table_.first, -1, 0);
    for (int i = 0; i < layout_.layers; ++i) {
      const int layer = layout_.first_layer + i;
      Add(table_.layer, layer, before + each * layer);
    }
    if (layout_.last) Add(table_.last, -1, before + each * layers_of_model);
    if (layout_.first && IsTied(table_)) {
      layout_.tied_bytes = layout_.tensors.front().bytes();
      layout_.tied_lookup = layout_.tensors.front().wgrad;
    }
    layout_.weights_bytes = weights_.end();
    layout_.wgrad_bytes = wgrad_.end();
    Places optimizer(weights_.end());
    layout_.optimizer_v = weights_.end() == 0 ? 0 : optimizer.Take(0);
    layout_.optimizer_bytes = weights_.end() == 0 ? 0 : layout_.optimizer_v + layout_.weights_bytes;
  }

 private:
  void Add(const std::vector<Operator>& operators, int layer, int id) {
    const std::string prefix =
        layer < 0 ? "" : fmt::format(fmt::runtime(table_.layer_prefix), layer);
    for (const Operator& op : operators) {
      StageOperator placed{.op = op, .layer = layer, .group = group_};
      for (const Parameter& parameter : op.parameters)
        placed.parameters.push_back(Add(parameter, prefix, id++));
      layout_.operators.push_back(std::move(placed));
    }
    ++group_;
  }

  StageOperator::Weights Add(const Parameter& parameter, const std::string& prefix, int id) {
    if (parameter.tied && layout_.first) {
      // One tensor, and two accumulators.
      const Tensor& tensor = layout_.tensors.front();
      layout_.tied_head = wgrad_.Take(tensor.elements());
      return {tensor.weight, layout_.tied_head};
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
                  .init_std = parameter.std};
    tensor.weight = weights_.Take(tensor.elements());
    tensor.wgrad = wgrad_.Take(tensor.elements());
    tensor.first_block = layout_.norm_blocks;
    if (parameter.tied) {
      layout_.tied_bytes = tensor.bytes();  // the first stage counts it
      layout_.tied_head = tensor.wgrad;
    } else {
      tensor.blocks = (tensor.elements() + kNormBlock - 1) / kNormBlock;
      layout_.norm_blocks += tensor.blocks;
      layout_.parameters += tensor.elements();
    }
    layout_.tensors.push_back(tensor);
    return {tensor.weight, tensor.wgrad};
  }

  const ModelTable& table_;
  StageLayout& layout_;
  Places weights_, wgrad_;
  int group_ = 0;
};

// Norm blocks of the stages before this one.
int64_t NormBlocksBefore(const ModelTable& table, const StageLayout& layout) {
  if (layout.first) return 0;
  StageLayout embeddings, layer;
  embeddings.first = true;
  layer.layers = 1;
  Lister(table, &embeddings).Run(0);
  Lister(table, &layer).Run(0);
  return embeddings.norm_blocks + layout.first_layer * layer.norm_blocks;
}

// Finds a place for everything that an operator reads and writes.
class Placer {
 public:
  Placer(const Job& job, StageLayout* layout)
      : tokens_(job.tokens()),
        width_(job.model.hidden_size),
        layout_(*layout),
        operators_(layout->operators) {
    FindTemporaries();
    Places scratch;
    TakeForPeers(job, &scratch);
    layout_.kernels = scratch.Take(KernelBytes(job) / 4);
    for (const StageOperator& placed : operators_)
      if (placed.op.kind == OperatorKind::kRope && layout_.angles == 0)
        layout_.angles = scratch.Take(int64_t{job.sequence_length} * placed.op.head_dim);
    for (int i = 0; i < 2; ++i) temporary_[i] = scratch.Take(tokens_ * widths_[i]);
    flow_[0] = scratch.Take(tokens_ * width_);

    Places stash, drop(scratch.end()), work(scratch.end()), all_work;
    flow_[1] = drop.Take(tokens_ * width_);
    PlaceForward(Keep::kStash, &stash);
    PlaceForward(Keep::kScratch, &drop);
    PlaceBackward(Halves::kTogether, &work);
    PlaceBackward(Halves::kApart, &all_work);
    layout_.stash_bytes = stash.end();
    layout_.work_bytes = all_work.end();
    layout_.scratch_bytes = work.most();
    layout_.drop_scratch_bytes = std::max(work.most(), drop.most());
  }

 private:
  // At the same places in every stage.
  void TakeForPeers(const Job& job, Places* scratch) {
    int64_t exchange = 0;
    for (const int64_t numbers : PeerSums(job))
      exchange =
          std::max(exchange, ExchangeBytes(job.tp, (numbers * 4 + job.tp - 1) / job.tp + kAlign));
    layout_.exchange = scratch->Take(exchange / 4);
    layout_.statistics = scratch->Take(job.tp > 1 ? 3 * job.tp * tokens_ : 0);
  }

  OperatorKind KindAt(size_t i) const { return operators_[i].op.kind; }
  bool Before(size_t i, OperatorKind kind) const {
    return i + 1 < operators_.size() && KindAt(i + 1) == kind;
  }

  // Whether what it gives is made again where it is needed, and so lies in scratch.
  bool IsTemporary(size_t i) const {
    const OperatorKind kind = KindAt(i);
    return kind == OperatorKind::kNorm || kind == OperatorKind::kGelu ||
           kind == OperatorKind::kSwiGlu ||
           (kind == OperatorKind::kLinear && Before(i, OperatorKind::kResidual));
  }

  // Whether the gradient with respect to what it gives is needed no more behind its input half.
  static bool GivesGradientInScratch(OperatorKind kind) {
    return kind == OperatorKind::kNorm || kind == OperatorKind::kAttention ||
           kind == OperatorKind::kSwiGlu;
  }

  // There are two places for these: an operator does not write where it reads. The second one also
  // has gradients on their way from an operator to the one before.
  void FindTemporaries() {
    which_.assign(operators_.size(), 0);
    for (size_t i = 0; i < operators_.size(); ++i) {
      if (GivesGradientInScratch(KindAt(i)))
        widths_[1] = std::max(widths_[1], operators_[i].op.stride);
      if (!IsTemporary(i)) continue;
      which_[i] = i > 0 && IsTemporary(i - 1) && which_[i - 1] == 0 ? 1 : 0;
      widths_[which_[i]] = std::max(widths_[which_[i]], operators_[i].op.stride);
    }
  }

  // `own`: where what is kept goes, in scratch one group over the other.
  void PlaceForward(Keep keep, Places* own) {
    const Area area = keep == Keep::kStash ? Area::kStash : Area::kScratch;
    const int64_t begin = own->end();
    const auto take = [&](int64_t numbers) { return Spot{area, own->Take(numbers)}; };
    Spot now, stream;
    if (!layout_.first) now = stream = {Area::kActBefore, 0};
    int turn = 0;
    const auto next_stream = [&](size_t i) -> Spot {
      if (i + 1 == operators_.size()) return {Area::kAct, 0};
      if (keep == Keep::kStash) return take(tokens_ * width_);
      return {Area::kScratch, flow_[turn++ % 2]};
    };
    for (size_t i = 0; i < operators_.size(); ++i) {
      StageOperator& placed = operators_[i];
      const Operator& op = placed.op;
      StageOperator::Forward& forward = placed.forward[static_cast<int>(keep)];
      if (keep == Keep::kScratch && i > 0 && operators_[i - 1].group != placed.group)
        own->BackTo(begin);
      forward.in = now;
      switch (op.kind) {
        case OperatorKind::kEmbedding:
          forward.out = stream = next_stream(i);
          break;
        case OperatorKind::kNorm:
          forward.statistics = take(static_cast<int64_t>(op.parameters.size()) * tokens_);
          break;
        case OperatorKind::kLoss:
          forward.statistics = take(2 * tokens_);
          break;
        case OperatorKind::kRope:
          forward.out = now;
          break;
        case OperatorKind::kLinear:
        case OperatorKind::kGelu:
        case OperatorKind::kSwiGlu:
          break;
        case OperatorKind::kAttention:
          forward.statistics = take(op.heads * tokens_);
          break;
        case OperatorKind::kResidual:
          forward.stream = stream;
          forward.out = stream = next_stream(i);
          if (op.dropout == 0) {
            StageOperator::Forward& linear = operators_[i - 1].forward[static_cast<int>(keep)];
            linear.stream = std::exchange(forward.stream, {});
            linear.out = forward.out;
            forward.in = {};
          }
          break;
      }
      if (IsTemporary(i)) {
        forward.out = {Area::kScratch, temporary_[which_[i]]};
      } else if (!forward.out && op.out > 0) {
        forward.out = take(tokens_ * op.stride);
      }
      now = forward.out;
      if (keep == Keep::kStash && (forward.statistics || forward.out.area == Area::kStash))
        layout_.needed = static_cast<int>(i) + 1;
    }
  }

  // `own`: for what the weight half needs.
  void PlaceBackward(Halves halves, Places* own) {
    const Area area = halves == Halves::kTogether ? Area::kScratch : Area::kWork;
    const int64_t begin = own->end();
    const auto take = [&](int64_t numbers) { return Spot{area, own->Take(numbers)}; };
    Spot& flow = layout_.flow[static_cast<int>(halves)];
    flow = {Area::kGradBefore, 0};
    if (layout_.first) {
      flow = halves == Halves::kTogether ? Spot{Area::kScratch, flow_[0]} : take(tokens_ * width_);
    }
    // Of what operator i gives.
    std::vector<Spot> gradient(operators_.size());
    const auto of = [&](size_t i) {
      switch (KindAt(i)) {
        case OperatorKind::kEmbedding:
        case OperatorKind::kResidual:
          return flow;
        case OperatorKind::kNorm:
        case OperatorKind::kAttention:
        case OperatorKind::kSwiGlu:
          return Spot{Area::kScratch, temporary_[1]};
        case OperatorKind::kLinear:
          // The loss turns its input into the gradient.
          if (Before(i, OperatorKind::kLoss)) return operators_[i].of(Keep::kStash).out;
          return take(tokens_ * operators_[i].op.stride);
        case OperatorKind::kRope:
        case OperatorKind::kGelu:
          return take(tokens_ * operators_[i].op.stride);
        case OperatorKind::kLoss:
          return Spot{};
      }
      PP_CHECK(false);
    };
    bool set = !layout_.last;
    for (size_t i = operators_.size(); i-- > 0;) {
      StageOperator& placed = operators_[i];
      StageOperator::Backward& backward = placed.backward[static_cast<int>(halves)];
      if (halves == Halves::kTogether && i + 1 < operators_.size() &&
          operators_[i + 1].group != placed.group)
        own->BackTo(begin);
      backward.d_out = i + 1 < operators_.size() ? gradient[i] : flow;
      if (KindAt(i) == OperatorKind::kNorm) {
        backward.part = take(static_cast<int64_t>(placed.op.parameters.size()) * width_);
        backward.d_in = flow;
        placed.begins = !std::exchange(set, true);
      } else if (KindAt(i) == OperatorKind::kGelu || KindAt(i) == OperatorKind::kRope) {
        backward.d_in = backward.d_out;  // in place
      } else if (i > 0) {
        backward.d_in = of(i - 1);
      }
      if (i > 0) gradient[i - 1] = backward.d_in;
    }
  }

  const int64_t tokens_, width_;
  StageLayout& layout_;
  std::vector<StageOperator>& operators_;
  std::vector<int> which_;
  int64_t widths_[2] = {}, temporary_[2] = {};  // offsets in scratch, of these and of
  int64_t flow_[2] = {};  // the stream: in a CFW both in turn; its gradient has the first one
};

}  // namespace

StageLayout LayoutStage(const Job& job, int stage) {
  PP_CHECK(stage >= 0 && stage < job.stages());
  const ModelTable table = PartOf(TableOf(job.model), job.tp);
  StageLayout layout;
  layout.stage = stage;
  layout.first = stage == 0;
  layout.last = stage == job.stages() - 1;
  for (int s = 0; s < stage; ++s) layout.first_layer += job.layers_per_stage[s];
  layout.layers = job.layers_per_stage[stage];
  layout.tp = job.tp;
  Lister(table, &layout).Run(job.model.layers);
  layout.first_norm_block = NormBlocksBefore(table, layout);

  const int64_t n = job.tokens();
  if (layout.first) layout.tokens_bytes = n * 4;
  if (layout.last) {
    layout.targets_bytes = n * 4;
    layout.loss_bytes = 8;
  } else {
    layout.act_bytes = n * job.model.hidden_size * 4;
    layout.grad_bytes = layout.act_bytes;
  }
  Placer(job, &layout);
  return layout;
}

int64_t NormBlocks(const Job& job) {
  const StageLayout last = LayoutStage(job, job.stages() - 1);
  return job.tp * (last.first_norm_block + last.norm_blocks);
}

int64_t ExchangeBytes(int64_t members, int64_t shard) {
  return (members - 1) * std::min(kExchangePiece, (shard + kAlign - 1) / kAlign * kAlign);
}

std::vector<int64_t> PeerSums(const Job& job) {
  if (job.tp == 1) return {};
  std::set<int64_t> sums = {3 * job.tp * job.tokens()};
  const ModelTable table = TableOf(job.model);
  for (const auto* operators : {&table.first, &table.layer, &table.last})
    for (const Operator& op : *operators) {
      if (op.kind == OperatorKind::kEmbedding) sums.insert(job.tokens() * op.out);
      if (op.kind == OperatorKind::kLinear && op.cut == Cut::kIn)
        sums.insert(job.tokens() * op.out);
      if (op.kind == OperatorKind::kLinear && op.cut == Cut::kOut)
        sums.insert(job.tokens() * op.in);
    }
  return {sums.begin(), sums.end()};
}

std::vector<Slice> SlicesOf(const Tensor& tensor, const Peer& peer) {
  const int64_t tp = peer.of, index = peer.index;
  const bool columns = tensor.across || !tensor.matrix;  // the pieces are side by side in a row
  std::map<std::string, int64_t> whole, before;
  int64_t all = 0;
  for (const Piece& piece : tensor.pieces) whole[piece.name] += piece.size, all += piece.size;
  const int64_t side = columns ? tensor.rows : tensor.cols;  // the other one, of this peer
  const int64_t sides = tensor.cut == Cut::kIn ? side * tp : side;
  const int64_t side_begin = tensor.cut == Cut::kIn ? side * index : 0;
  std::vector<Slice> slices;
  int64_t ours = 0, theirs = 0;
  for (const Piece& piece : tensor.pieces) {
    const int64_t part = tensor.cut == Cut::kOut ? (piece.size + tp - 1) / tp : piece.size;
    const int64_t begin = tensor.cut == Cut::kOut ? std::min(index * part, piece.size) : 0;
    const int64_t count = std::min(part, piece.size - begin), in_file = before[piece.name] + begin;
    Slice slice{.name = piece.name};
    if (columns) {
      slice = {piece.name, {sides, whole[piece.name]},        side_begin, in_file, side, count,
               ours,       side_begin * all + theirs + begin, all};
    } else {
      slice = {piece.name,  {whole[piece.name], sides},
               in_file,     side_begin,
               count,       side,
               ours * side, (theirs + begin) * sides + side_begin,
               sides};
    }
    if (!tensor.matrix) slice.shape.erase(slice.shape.begin());
    if (count > 0) slices.push_back(std::move(slice));
    before[piece.name] += piece.size;
    ours += part;
    theirs += piece.size;
  }
  return slices;
}

int64_t KernelBytes(const Job& job) {
  // Matrix products: 384 steps of k of 256 + 32 rows, each number as three of 16 bits.
  int64_t floats = 384 * (256 + 32) * 3 / 2;
  const auto lines = [](int64_t n) { return (n + 15) / 16 * 16; };
  const int64_t tokens = (int64_t{job.sequence_length} + 63) / 32 * 32;
  const int64_t keys = std::min<int64_t>(tokens, 512 + 32), band = keys + 16;
  for (const Operator& op : TableOf(job.model).layer) {
    if (op.kind != OperatorKind::kAttention) continue;
    // Of one head: its keys and values forward, backward five such things of 512 keys; 64 queries
    // and the scores of those; a number for each query of each head with the same keys.
    const int64_t width = (int64_t{op.head_dim} + 31) / 32 * 32;
    floats = std::max(floats, std::max(2 * tokens, 5 * keys) * width + 2 * 64 * (width + band) +
                                  lines(band + 64) + lines(tokens * (op.heads / op.kv_heads)));
  }
  return 4 * floats;
}

}  // namespace pp
