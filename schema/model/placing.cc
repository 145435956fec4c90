#include "schema/model/placing.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pp {
namespace {

// Where the gradient with respect to an operator's output lies.
enum class Gradient {
  kNone,
  kStream,   // in the stream's
  kScratch,  // in the second of the temporaries: not needed after the operator's input half
  kOwn,      // by itself, until the weight half
};

// How an operator's values lie, by its kind.
struct Traits {
  // Its output is recomputed where it is needed, and so lies in scratch, unless Job::keep says
  // otherwise; a Linear's, where a Residual follows.
  bool temporary;
  Gradient gradient;  // a Linear's: or where what follows has it
  bool in_place;      // the gradient of its input overwrites that of its output
};

Traits TraitsOf(OperatorKind kind) {
  switch (kind) {
    case OperatorKind::kEmbedding:
      return {false, Gradient::kStream, false};
    case OperatorKind::kNorm:
      return {true, Gradient::kScratch, false};
    case OperatorKind::kLinear:
      return {false, Gradient::kOwn, false};
    case OperatorKind::kHeadNorm:
    case OperatorKind::kRope:
      return {false, Gradient::kOwn, true};
    case OperatorKind::kAttention:
      return {false, Gradient::kScratch, false};
    case OperatorKind::kGelu:
      return {true, Gradient::kOwn, true};
    case OperatorKind::kSwiGlu:
      return {true, Gradient::kScratch, false};
    case OperatorKind::kResidual:
      return {false, Gradient::kStream, false};
    case OperatorKind::kLoss:
      return {false, Gradient::kNone, false};
  }
  PP_CHECK(false);
}

class Placer {
 public:
  Placer(const Job& job, StageLayout* layout)
      : tokens_(job.tokens()),
        stream_(job.stream_tokens()),
        shares_(job.sequence_parallel),
        dropped_(job.recompute),
        keep_(job.keep),
        dtype_(job.dtype),
        width_(job.model.hidden_size),
        layout_(*layout),
        operators_(layout->operators) {
    FindTemporaries();
    Places scratch;
    TakeForPeers(job, &scratch);
    TakeForAdapters(&scratch);
    for (int i = 0; i < 2; ++i) temporary_[i] = scratch.Take(tokens_ * widths_[i], dtype_);
    stream_places_[0] = scratch.Take(stream_ * width_, dtype_);

    Places kept, stash, drop(scratch.end()), work(scratch.end()), all_work;
    stream_places_[1] = drop.Take(stream_ * width_, dtype_);
    PlaceForward(Keep::kStash, &kept, &stash);
    PlaceForward(Keep::kScratch, &kept, &drop);
    FindRecomputed();
    PlaceBackward(Halves::kTogether, &work);
    PlaceBackward(Halves::kApart, &all_work);
    layout_.kept_bytes = kept.end();
    layout_.stash_bytes = stash.end();
    layout_.work_bytes = all_work.end();
    layout_.scratch_bytes = work.most();
    layout_.drop_scratch_bytes = std::max(work.most(), drop.most());
  }

 private:
  // At the same places in every stage.
  void TakeForPeers(const Job& job, Places* scratch) {
    int64_t exchange = 0;
    for (const auto [work, numbers, dtype] : PeerExchanges(job)) {
      const int64_t bytes = numbers * BytesOf(dtype);
      exchange = std::max(
          exchange, ExchangeBytes(job.backend, job.tp, (bytes + job.tp - 1) / job.tp + kAlign));
    }
    layout_.exchange = scratch->Take(exchange / 4);
    layout_.statistics = scratch->Take(job.tp > 1 ? 3 * job.tp * tokens_ : 0);
  }

  void TakeForAdapters(Places* scratch) {
    int64_t rank = 0;
    for (const StageOperator& placed : operators_)
      for (const Adapter& adapter : placed.op.adapters) rank = std::max(rank, adapter.rank);
    for (int64_t& place : layout_.adapter) place = scratch->Take(tokens_ * rank, dtype_);
  }

  OperatorKind KindAt(size_t i) const { return operators_[i].op.kind; }
  bool Before(size_t i, OperatorKind kind) const {
    return i + 1 < operators_.size() && KindAt(i + 1) == kind;
  }

  static bool Has(const std::vector<OperatorKind>& kinds, OperatorKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  }

  bool IsTemporary(size_t i) const {
    return (TraitsOf(KindAt(i)).temporary && !Has(keep_, KindAt(i))) ||
           (KindAt(i) == OperatorKind::kLinear && Before(i, OperatorKind::kResidual));
  }

  // Whether a Residual's input is added as it is.
  bool IsPlain(const Operator& op) const { return op.dropout == 0 && !shares_; }

  // There are two places for these: an operator does not write where it reads. The second one also
  // holds gradients passed from an operator to the one before, and the statistics of a Loss.
  void FindTemporaries() {
    which_.assign(operators_.size(), 0);
    if (shares_) widths_[0] = width_;  // for an Embedding
    for (size_t i = 0; i < operators_.size(); ++i) {
      if (TraitsOf(KindAt(i)).gradient == Gradient::kScratch)
        widths_[1] = std::max(widths_[1], operators_[i].op.out);
      if (KindAt(i) == OperatorKind::kLoss)  // two fp32 numbers per token
        widths_[1] = std::max(widths_[1], 2 * BytesOf(Dtype::kFp32) / BytesOf(dtype_));
      if (!IsTemporary(i)) continue;
      which_[i] = i > 0 && IsTemporary(i - 1) && which_[i - 1] == 0 ? 1 : 0;
      widths_[which_[i]] = std::max(widths_[which_[i]], operators_[i].op.out);
    }
  }

  // Whether a CFW drops what it saves. The stream belongs to the residuals, a HeadNorm to the
  // norms.
  bool Drops(size_t i) const {
    OperatorKind kind = KindAt(i);
    if (kind == OperatorKind::kEmbedding) kind = OperatorKind::kResidual;
    if (kind == OperatorKind::kHeadNorm) kind = OperatorKind::kNorm;
    return dropped_.empty() || Has(dropped_, kind);
  }

  // `kept`: for what a CFW keeps. `own`: for the rest; in scratch the groups overlay each other.
  void PlaceForward(Keep keep, Places* kept, Places* own) {
    const bool drops = keep == Keep::kScratch;
    const int64_t begin = own->end();
    using Field = Spot StageOperator::Forward::*;
    const auto take = [&](size_t i, Field field, int64_t numbers) -> Spot {
      const bool fp32 = field == &StageOperator::Forward::statistics;
      const Dtype dtype = fp32 ? Dtype::kFp32 : dtype_;
      const Spot& in_stash = operators_[i].forward[static_cast<int>(Keep::kStash)].*field;
      if (drops && in_stash.area == Area::kKept) return in_stash;
      if (drops) return {Area::kScratch, own->Take(numbers, dtype)};
      // A CFW drops kept outputs, whatever else it keeps.
      const bool keeps = field == &StageOperator::Forward::out && Has(keep_, KindAt(i));
      if (keeps || Drops(i)) return {Area::kStash, own->Take(numbers, dtype)};
      return {Area::kKept, kept->Take(numbers, dtype)};
    };
    Spot now, stream;
    if (!layout_.first) now = stream = {Area::kActBefore, 0};
    int turn = 0;
    const auto next_stream = [&](size_t i) -> Spot {
      if (i + 1 == operators_.size()) return {Area::kAct, 0};
      if (drops && Drops(i)) return {Area::kScratch, stream_places_[turn++ % 2]};
      return take(i, &StageOperator::Forward::out, stream_ * width_);
    };
    for (size_t i = 0; i < operators_.size(); ++i) {
      StageOperator& placed = operators_[i];
      const Operator& op = placed.op;
      StageOperator::Forward& forward = placed.forward[static_cast<int>(keep)];
      if (drops && i > 0 && operators_[i - 1].group != placed.group) own->BackTo(begin);
      forward.in = now;
      switch (op.kind) {
        case OperatorKind::kEmbedding:
          forward.out = stream = next_stream(i);
          if (shares_) forward.all = {Area::kScratch, temporary_[0]};
          break;
        case OperatorKind::kNorm:
          forward.statistics = take(i, &StageOperator::Forward::statistics,
                                    static_cast<int64_t>(op.parameters.size()) * stream_);
          break;
        case OperatorKind::kHeadNorm:
          forward.statistics =
              take(i, &StageOperator::Forward::statistics, (op.heads + op.kv_heads) * tokens_);
          break;
        case OperatorKind::kLoss:
          forward.statistics = {Area::kScratch, temporary_[1]};
          break;
        case OperatorKind::kRope:
          forward.out = now;
          break;
        case OperatorKind::kLinear:
        case OperatorKind::kGelu:
        case OperatorKind::kSwiGlu:
          break;
        case OperatorKind::kAttention:
          forward.statistics = take(i, &StageOperator::Forward::statistics, op.heads * tokens_);
          break;
        case OperatorKind::kResidual:
          forward.stream = stream;
          forward.out = stream = next_stream(i);
          if (IsPlain(op)) {
            PP_CHECK(i > 0 && KindAt(i - 1) == OperatorKind::kLinear);  // which adds the stream
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
        forward.out = take(i, &StageOperator::Forward::out, tokens_ * op.out);
      }
      now = forward.out;
    }
  }

  // RE runs what fills the stash, and the operators whose unsaved outputs those read; a backward,
  // those whose unsaved outputs weight halves read.
  void FindRecomputed() {
    bool reads = false;  // the next operator reads this one's output
    for (size_t i = operators_.size(); i-- > 0;) {
      const StageOperator::Forward& forward = operators_[i].of(Keep::kStash);
      operators_[i].recomputed =
          forward.out.area == Area::kStash || forward.statistics.area == Area::kStash ||
          (KindAt(i) == OperatorKind::kLoss && forward.in.area == Area::kStash) ||
          (reads && IsTemporary(i) && forward.out.area == Area::kScratch);
      reads = operators_[i].recomputed;
      operators_[i].remade =
          IsTemporary(i) && i + 1 < operators_.size() && operators_[i + 1].op.trains();
    }
  }

  // The first of the operators whose gradients share a place with that of operator i's output.
  size_t BeginOfPlace(size_t i) const {
    while (TraitsOf(KindAt(i)).in_place) --i;
    return i;
  }

  // The Norms that do not add to the gradient with respect to the stream where it is, but write
  // the sum elsewhere: a weight half has yet to read it, or it was received. In their order.
  std::vector<size_t> FindMoves(Halves halves) const {
    std::vector<size_t> moves;
    bool read = halves == Halves::kTogether || layout_.last;
    for (size_t i = operators_.size(); i-- > 0;) {
      if (KindAt(i) == OperatorKind::kResidual && IsPlain(operators_[i].op))
        read |= operators_[i - 1].op.trains();
      if (KindAt(i) == OperatorKind::kNorm && std::exchange(read, false)) moves.push_back(i);
    }
    return moves;
  }

  // The places of the gradient with respect to the stream: with respect to the stage's output, and
  // after each of the moves. The last is grad_before, or where the embedding's weight half finds
  // it.
  std::vector<Spot> PlaceStreamGradient(Halves halves, const std::vector<size_t>& moves,
                                        Places* own) {
    const auto take = [&](Area area) { return Spot{area, own->Take(stream_ * width_, dtype_)}; };
    std::vector<Spot> d_stream(moves.size() + 1);
    Spot last = {Area::kGradBefore, 0};
    if (halves == Halves::kApart) {
      if (layout_.first)
        last =
            operators_[0].op.trains() ? take(Area::kWork) : Spot{Area::kScratch, stream_places_[0]};
      for (size_t k = layout_.last ? 1 : 0; k < moves.size(); ++k) d_stream[k] = take(Area::kWork);
      d_stream.back() = last;
      return d_stream;
    }
    // What leaves its group has two places in turn, as the next group's weight halves read one
    // while its Norm writes the other. For the rest PlaceBackward takes a place in the group.
    Spot other = {Area::kScratch, stream_places_[0]};
    if (layout_.first) last = std::exchange(other, {});
    bool at_last = true;
    for (size_t k = moves.size(); k > 0; --k) {
      const auto group = [&](size_t move) { return operators_[moves[move]].group; };
      if (k < moves.size() && group(k) == group(k - 1)) continue;
      if (!at_last && !other) other = take(Area::kScratch);
      d_stream[k] = at_last ? last : other;
      at_last = !at_last;
    }
    if (!layout_.last) d_stream[0] = layout_.first || !moves.empty() ? Spot{Area::kGrad, 0} : last;
    return d_stream;
  }

  // `own`: for what the weight half needs.
  void PlaceBackward(Halves halves, Places* own) {
    const Area area = halves == Halves::kTogether ? Area::kScratch : Area::kWork;
    const std::vector<size_t> moves = FindMoves(halves);
    std::vector<Spot> places = PlaceStreamGradient(halves, moves, own);
    const int64_t begin = own->end();
    const auto take = [&](int64_t numbers, Dtype dtype) {
      return Spot{area, own->Take(numbers, dtype)};
    };
    Spot d_stream = layout_.d_stream[static_cast<int>(halves)] = places[0];
    size_t moved = 0;
    // With respect to operator i's output.
    std::vector<Spot> gradient(operators_.size());
    // What no weight half will read is where a whole backward has it.
    const auto unread = [&](size_t i) {
      return halves == Halves::kApart && !operators_[i].op.trains();
    };
    const auto of = [&](size_t i) {
      if (KindAt(i) == OperatorKind::kLinear) {
        // The loss has overwritten its input with the gradient.
        if (Before(i, OperatorKind::kLoss)) return operators_[i].of(Keep::kStash).out;
        if (Before(i, OperatorKind::kResidual) && IsPlain(operators_[i + 1].op)) return d_stream;
      }
      switch (TraitsOf(KindAt(i)).gradient) {
        case Gradient::kNone:
          return Spot{};
        case Gradient::kStream:
          return d_stream;
        case Gradient::kScratch:
          return Spot{Area::kScratch, temporary_[1]};
        case Gradient::kOwn:
          if (unread(BeginOfPlace(i))) return operators_[i].of(Halves::kTogether).d_out;
          return take(tokens_ * operators_[i].op.out, dtype_);
      }
      PP_CHECK(false);
    };
    for (size_t i = operators_.size(); i-- > 0;) {
      StageOperator& placed = operators_[i];
      StageOperator::Backward& backward = placed.backward[static_cast<int>(halves)];
      if (halves == Halves::kTogether && i + 1 < operators_.size() &&
          operators_[i + 1].group != placed.group)
        own->BackTo(begin);
      backward.d_out = i + 1 < operators_.size() ? gradient[i] : d_stream;
      if (KindAt(i) == OperatorKind::kNorm) {
        if (placed.op.trains())
          backward.part =
              take(static_cast<int64_t>(placed.op.parameters.size()) * width_, Dtype::kFp32);
        backward.add = d_stream;
        if (moved < moves.size() && moves[moved] == i) {
          d_stream = places[++moved];
          if (!d_stream) d_stream = take(stream_ * width_, dtype_);
        }
        backward.d_in = d_stream;
      } else if (TraitsOf(KindAt(i)).in_place) {
        if (KindAt(i) == OperatorKind::kHeadNorm)
          backward.part = unread(i) ? placed.of(Halves::kTogether).part
                                    : take(2 * placed.op.head_dim, Dtype::kFp32);
        backward.d_in = backward.d_out;
      } else if (i > 0) {
        backward.d_in = of(i - 1);
      }
      if (i > 0) gradient[i - 1] = backward.d_in;
    }
  }

  const int64_t tokens_, stream_;            // N, S
  const bool shares_;                        // sequence parallelism
  const std::vector<OperatorKind> dropped_;  // Job::recompute
  const std::vector<OperatorKind> keep_;     // Job::keep
  const Dtype dtype_;
  const int64_t width_;
  StageLayout& layout_;
  std::vector<StageOperator>& operators_;
  std::vector<int> which_;
  int64_t widths_[2] = {}, temporary_[2] = {};  // offsets in scratch, of these and of
  int64_t stream_places_[2] = {};  // in a CFW both in turn; its gradient has the first one
};

}  // namespace

void PlaceOperators(const Job& job, StageLayout* layout) { Placer(job, layout); }

}  // namespace pp
