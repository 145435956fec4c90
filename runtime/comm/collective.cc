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
  for (const std::vector<ByteRange>& shard : args_.shards)
    for (const ByteRange& range : shard) whole_ = std::max(whole_, range.begin + range.bytes);
  if (args_.kind != CollectiveKind::kAllGather) AddScatter();
  if (args_.kind != CollectiveKind::kReduceScatter) AddGather();
  parts_.resize(group.size());
  own_parts_.resize(2);
  transfers_.reserve(2 * group.size());
}

void Collective::AddScatter() {
  std::vector<std::vector<ByteRange>> pieces;
  size_t rounds = 0;
  for (const std::vector<ByteRange>& shard : args_.shards) {
    pieces.push_back(InPieces(shard));
    rounds = std::max(rounds, pieces.back().size());
  }
  const std::vector<ByteRange>& own = pieces[me_];
  for (const ByteRange& piece : own) slot_ = std::max(slot_, piece.bytes);
  slot_ = (slot_ + kAlign - 1) / kAlign * kAlign;
  PP_CHECK(args_.group.size() == 1 || own.empty() || args_.exchange != nullptr);
  for (size_t r = 0; r < rounds; ++r) {
    Round round;
    if (r < own.size()) round.sum = own[r];
    for (size_t k = 0; k < args_.group.size(); ++k) {
      if (k == me_) continue;
      if (r < pieces[k].size())
        round.moves.push_back({{Way::kSend, args_.channel, args_.group[k]}, pieces[k][r]});
      if (r < own.size())
        round.moves.push_back({{Way::kRecv, args_.channel, args_.group[k]}, own[r], Slot(k)});
    }
    rounds_.push_back(std::move(round));
  }
}

void Collective::AddGather() {
  std::vector<std::vector<ByteRange>> ranges;
  size_t rounds = 0;
  for (const std::vector<ByteRange>& shard : args_.shards) {
    ranges.push_back(NotEmpty(shard));
    rounds = std::max(rounds, ranges.back().size());
  }
  for (size_t r = 0; r < rounds; ++r) {
    Round round;
    for (size_t k = 0; k < args_.group.size(); ++k) {
      if (k == me_) continue;
      if (r < ranges[me_].size())
        round.moves.push_back({{Way::kSend, args_.channel, args_.group[k]}, ranges[me_][r]});
      if (r < ranges[k].size())
        round.moves.push_back({{Way::kRecv, args_.channel, args_.group[k]}, ranges[k][r]});
    }
    rounds_.push_back(std::move(round));
  }
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

void Collective::SumPiece(const ByteRange& piece) {
  for (size_t k = 0; k < parts_.size(); ++k) parts_[k] = k == me_ ? value_ + piece.begin : Slot(k);
  sum_ = queue_->Sum({.dtype = args_.dtype,
                      .n = piece.bytes / BytesOf(args_.dtype),
                      .parts = parts_,
                      .out = value_ + piece.begin});
}

Status Collective::Start(int64_t offset) {
  value_ = args_.value + offset;
  round_ = 0;
  sum_ = 0;
  over_ = started_ = false;
  copied_ = args_.second == nullptr || args_.group.size() == 1;
  if (args_.second == nullptr) return {};
  own_parts_ = {value_, args_.second};
  SumWhole(own_parts_, value_, args_.group.size() == 1 ? args_.second : nullptr);
  return {};
}

Status Collective::Test(bool* over) {
  while (!over_ && queue_->Done(sum_)) {
    if (round_ < rounds_.size()) {
      bool here = false;
      PP_RETURN_IF_ERROR(Advance(&rounds_[round_], &here));
      if (!here) break;
      if (rounds_[round_].sum.bytes > 0) SumPiece(rounds_[round_].sum);
      ++round_;
    } else if (!std::exchange(copied_, true)) {
      SumWhole(std::span(own_parts_).first(1), args_.second);
    } else {
      over_ = true;
    }
  }
  *over = over_;
  return {};
}

Status Collective::Advance(Round* round, bool* over) {
  if (!std::exchange(started_, true)) {
    transfers_.clear();
    for (Move& move : round->moves) {
      transfers_.push_back({move.port, move.slot != nullptr ? move.slot : value_ + move.range.begin,
                            move.range.bytes});
      move.under_way = true;
    }
    PP_RETURN_IF_ERROR(transport_->StartTogether(transfers_));
  }
  *over = true;
  for (Move& move : round->moves) {
    bool moved = true;
    if (move.under_way) PP_RETURN_IF_ERROR(transport_->Test(move.port, &moved));
    move.under_way = !moved;
    *over = *over && moved;
  }
  if (*over) started_ = false;
  return {};
}

}  // namespace pp
