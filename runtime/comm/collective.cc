#include "runtime/comm/collective.h"

#include <algorithm>
#include <utility>

namespace pp {
namespace {

std::vector<ByteRange> InPieces(const std::vector<ByteRange>& ranges) {
  std::vector<ByteRange> pieces;
  for (const ByteRange& range : ranges)
    for (int64_t done = 0; done < range.bytes; done += kExchangePiece)
      pieces.push_back({range.begin + done, std::min(kExchangePiece, range.bytes - done)});
  return pieces;
}

std::vector<ByteRange> NotEmpty(std::vector<ByteRange> ranges) {
  std::erase_if(ranges, [](const ByteRange& range) { return range.bytes == 0; });
  return ranges;
}

}  // namespace

Collective::Collective(CollectiveArgs args, Transport* transport, Queue* queue)
    : args_(std::move(args)), transport_(transport), queue_(queue) {
  const Group& group = args_.group;
  me_ = std::find(group.begin(), group.end(), args_.rank) - group.begin();
  PP_CHECK(me_ < group.size() && args_.shards.size() == group.size());
  for (size_t k = 0; k < group.size(); ++k) {
    for (const ByteRange& range : args_.shards[k])
      whole_ = std::max(whole_, range.begin + range.bytes);
    if (k == me_) continue;
    const Port out{Way::kSend, args_.channel, group[k]};
    const Port in{Way::kRecv, args_.channel, group[k]};
    scatter_out_.push_back({out, InPieces(args_.shards[k])});
    gather_out_.push_back({out, NotEmpty(args_.shards[me_])});
    gather_in_.push_back({in, NotEmpty(args_.shards[k])});
  }
  rounds_ = InPieces(args_.shards[me_]);
  for (const ByteRange& piece : rounds_) slot_ = std::max(slot_, piece.bytes);
  slot_ = (slot_ + kAlign - 1) / kAlign * kAlign;
  arrivals_.resize(group.size());
  parts_.resize(group.size());
  own_parts_.resize(2);
  PP_CHECK(!Reduces() || group.size() == 1 || rounds_.empty() || args_.exchange != nullptr);
}

std::byte* Collective::Slot(size_t member) const {
  return args_.exchange + static_cast<int64_t>(member < me_ ? member : member - 1) * slot_;
}

void Collective::SumWhole(std::span<const std::byte* const> parts, std::byte* out,
                          std::byte* also) {
  sum_ = queue_->Sum({.dtype = args_.dtype,
                      .n = whole_ / BytesOf(args_.dtype),
                      .parts = parts,
                      .out = out,
                      .also = also});
}

Status Collective::Start(int64_t offset) {
  value_ = args_.value + offset;
  for (auto* flows : {&scatter_out_, &gather_out_, &gather_in_})
    for (Flow& flow : *flows) flow.next = 0;
  std::fill(arrivals_.begin(), arrivals_.end(), Arrival::kNotStarted);
  round_ = 0;
  summing_ = false;
  sum_ = 0;
  phase_ = Phase::kOwn;
  if (args_.second == nullptr) return {};
  own_parts_ = {value_, args_.second};
  SumWhole(own_parts_, value_, args_.group.size() == 1 ? args_.second : nullptr);
  return {};
}

Status Collective::Test(bool* over) {
  *over = phase_ == Phase::kOver;
  while (!*over) {
    bool next = false;
    PP_RETURN_IF_ERROR(StepPhase(&next));
    if (!next) return {};
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
    if (phase_ == Phase::kCopy && args_.second != nullptr && args_.group.size() > 1)
      SumWhole(std::span(own_parts_).first(1), args_.second);
    *over = phase_ == Phase::kOver;
  }
  return {};
}

Status Collective::StepPhase(bool* over) {
  *over = true;
  switch (phase_) {
    case Phase::kOwn:
    case Phase::kCopy:
      *over = queue_->Done(sum_);
      return {};
    case Phase::kScatter:
      return Reduces() ? Scatter(over) : Status();
    case Phase::kGather: {
      if (args_.kind == CollectiveKind::kReduceScatter) return {};
      bool sent = false, received = false;
      PP_RETURN_IF_ERROR(AdvanceAll(gather_out_, &sent));
      PP_RETURN_IF_ERROR(AdvanceAll(gather_in_, &received));
      *over = sent && received;
      return {};
    }
    case Phase::kOver:
      return {};
  }
  return {};
}

Status Collective::Scatter(bool* over) {
  bool sent = false;
  PP_RETURN_IF_ERROR(AdvanceAll(scatter_out_, &sent));
  while (round_ < rounds_.size()) {
    if (!summing_) {
      bool all_here = false;
      PP_RETURN_IF_ERROR(Receive(&all_here));
      if (!all_here) break;
      const ByteRange& piece = rounds_[round_];
      for (size_t k = 0; k < parts_.size(); ++k)
        parts_[k] = k == me_ ? value_ + piece.begin : Slot(k);
      sum_ = queue_->Sum({.dtype = args_.dtype,
                          .n = piece.bytes / BytesOf(args_.dtype),
                          .parts = parts_,
                          .out = value_ + piece.begin});
      summing_ = true;
    }
    if (!queue_->Done(sum_)) break;
    summing_ = false;
    std::fill(arrivals_.begin(), arrivals_.end(), Arrival::kNotStarted);
    ++round_;
  }
  *over = sent && round_ == rounds_.size();
  return {};
}

// The others' parts of the piece of this round.
Status Collective::Receive(bool* all_here) {
  *all_here = true;
  for (size_t k = 0; k < arrivals_.size(); ++k) {
    if (k == me_) continue;
    const Port port{Way::kRecv, args_.channel, args_.group[k]};
    if (arrivals_[k] == Arrival::kNotStarted) {
      PP_RETURN_IF_ERROR(transport_->Start(port, Slot(k), rounds_[round_].bytes));
      arrivals_[k] = Arrival::kUnderWay;
    }
    if (arrivals_[k] == Arrival::kUnderWay) {
      bool here = false;
      PP_RETURN_IF_ERROR(transport_->Test(port, &here));
      if (here) arrivals_[k] = Arrival::kHere;
    }
    *all_here = *all_here && arrivals_[k] == Arrival::kHere;
  }
  return {};
}

Status Collective::AdvanceAll(std::vector<Flow>& flows, bool* over) {
  *over = true;
  for (Flow& flow : flows) {
    PP_RETURN_IF_ERROR(Advance(flow));
    *over = *over && flow.finished();
  }
  return {};
}

Status Collective::Advance(Flow& flow) {
  while (!flow.finished()) {
    const ByteRange& range = flow.ranges[flow.next];
    if (!flow.busy)
      PP_RETURN_IF_ERROR(transport_->Start(flow.port, value_ + range.begin, range.bytes));
    flow.busy = true;
    bool over = false;
    PP_RETURN_IF_ERROR(transport_->Test(flow.port, &over));
    if (!over) return {};
    flow.busy = false;
    ++flow.next;
  }
  return {};
}

}  // namespace pp
