#include "runtime/plan/collective.h"

#include <algorithm>
#include <utility>

namespace pp {
namespace {

// For a shard that fills its slots: two of its pieces do.
bool HasHalves(const std::vector<ByteRange>& shard, int64_t piece) {
  return std::any_of(shard.begin(), shard.end(),
                     [&](const ByteRange& range) { return range.bytes >= piece; });
}

std::vector<ByteRange> InPieces(const std::vector<ByteRange>& shard, int64_t piece) {
  const int64_t most = HasHalves(shard, piece) ? piece / 2 : piece;
  std::vector<ByteRange> pieces;
  for (const ByteRange& range : shard)
    for (int64_t done = 0, next = 0; done < range.bytes; done += next) {
      next = std::min(most, range.bytes - done);
      pieces.push_back({range.begin + done, next});
    }
  return pieces;
}

std::vector<ByteRange> NotEmpty(std::vector<ByteRange> ranges) {
  std::erase_if(ranges, [](const ByteRange& range) { return range.bytes == 0; });
  return ranges;
}

}  // namespace

RunningCollective::RunningCollective(CollectiveArgs args, Transport* transport, Queue* queue)
    : args_(std::move(args)), transport_(transport), queue_(queue) {
  const Group& group = args_.group;
  me_ = std::find(group.begin(), group.end(), args_.rank) - group.begin();
  PP_CHECK(me_ < group.size() && args_.shards.size() == group.size());
  for (const std::vector<ByteRange>& shard : args_.shards)
    for (const ByteRange& range : shard) whole_ = std::max(whole_, range.begin + range.bytes);
  if (group.size() == 1) return;  // nobody else has a part; Start adds the second one
  stream_ = transport->QueueOf({Way::kSend, args_.channel, group[me_ == 0 ? 1 : 0]});
  if (stream_ != nullptr) queue_ = stream_;
  if (args_.kind != CollectiveKind::kAllGather) AddScatter();
  if (args_.kind != CollectiveKind::kReduceScatter) AddGather();
  for (auto& parts : parts_) parts.resize(group.size());
  own_parts_.resize(2);
  transfers_.reserve(2 * group.size());
}

void RunningCollective::AddScatter() {
  std::vector<std::vector<ByteRange>> pieces;
  size_t rounds = 0;
  for (const std::vector<ByteRange>& shard : args_.shards) {
    pieces.push_back(InPieces(shard, args_.piece));
    rounds = std::max(rounds, pieces.back().size());
  }
  const std::vector<ByteRange>& own = pieces[me_];
  for (const ByteRange& piece : own) slot_ = std::max(slot_, piece.bytes);
  slot_ = (slot_ + kAlign - 1) / kAlign * kAlign;
  if (HasHalves(args_.shards[me_], args_.piece)) {
    halves_ = 2;
    slot_ = args_.piece;
  }
  PP_CHECK(own.empty() || args_.exchange != nullptr);
  for (size_t r = 0; r < rounds; ++r) {
    Round round;
    if (r < own.size()) round.sum = own[r];
    for (size_t k = 0; k < args_.group.size(); ++k) {
      if (k == me_) continue;
      if (r < pieces[k].size())
        round.moves.push_back({{Way::kSend, args_.channel, args_.group[k]}, pieces[k][r]});
      if (r < own.size())
        round.moves.push_back({{Way::kRecv, args_.channel, args_.group[k]}, own[r], Slot(k, r)});
    }
    rounds_.push_back(std::move(round));
  }
}

void RunningCollective::AddGather() {
  std::vector<std::vector<ByteRange>> ranges;
  size_t rounds = 0;
  for (const std::vector<ByteRange>& shard : args_.shards) {
    ranges.push_back(NotEmpty(shard));
    rounds = std::max(rounds, ranges.back().size());
  }
  for (size_t r = 0; r < rounds; ++r) {
    Round round{.gathers = true};
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

std::byte* RunningCollective::Slot(size_t member, size_t round) const {
  return args_.exchange + static_cast<int64_t>(member < me_ ? member : member - 1) * slot_ +
         static_cast<int64_t>(round % halves_) * (slot_ / 2);
}

void RunningCollective::SumWhole(std::span<const std::byte* const> parts, std::byte* out,
                                 std::byte* also) {
  sum_ = queue_->Sum({.dtype = args_.dtype,
                      .n = whole_ / BytesOf(args_.dtype),
                      .parts = parts,
                      .out = out,
                      .also = also});
}

void RunningCollective::SumPiece(size_t round) {
  const ByteRange& piece = rounds_[round].sum;
  std::vector<const std::byte*>& parts = parts_[round % halves_];
  for (size_t k = 0; k < parts.size(); ++k)
    parts[k] = k == me_ ? value_ + piece.begin : Slot(k, round);
  sum_ = sums_[round % halves_] = queue_->Sum({.dtype = args_.dtype,
                                               .n = piece.bytes / BytesOf(args_.dtype),
                                               .parts = parts,
                                               .out = value_ + piece.begin});
}

Status RunningCollective::Start(int64_t offset) {
  value_ = args_.value + offset;
  round_ = 0;
  sum_ = 0;
  over_ = started_ = false;
  copied_ = args_.second == nullptr || args_.group.size() == 1;
  if (args_.second != nullptr) {
    own_parts_ = {value_, args_.second};
    SumWhole(own_parts_, value_, args_.group.size() == 1 ? args_.second : nullptr);
  }
  sums_[0] = sums_[1] = sum_;
  return stream_ != nullptr ? SubmitRounds() : Status();
}

Status RunningCollective::SubmitRounds() {
  for (size_t round = 0; round < rounds_.size(); ++round) {
    PP_RETURN_IF_ERROR(StartTransfers(round));
    if (rounds_[round].sum.bytes > 0) SumPiece(round);
  }
  if (!copied_) SumWhole(std::span(own_parts_).first(1), args_.second);
  over_ = true;
  return {};
}

Status RunningCollective::Test(bool* over) {
  while (!over_) {
    if (round_ < rounds_.size()) {
      PP_RETURN_IF_ERROR(StartRound());
      bool here = false;
      PP_RETURN_IF_ERROR(TestRound(&here));
      if (!here) break;
      const size_t done = round_++;
      // Before the sum: the others need not wait for it.
      const bool sums = rounds_[done].sum.bytes > 0;
      if (sums && halves_ == 2 && round_ < rounds_.size() && !rounds_[round_].gathers)
        PP_RETURN_IF_ERROR(StartRound());
      if (sums) SumPiece(done);
    } else if (!queue_->Done(sum_)) {
      break;
    } else if (!std::exchange(copied_, true)) {
      SumWhole(std::span(own_parts_).first(1), args_.second);
    } else {
      over_ = true;
    }
  }
  *over = over_;
  return {};
}

// The destination of what it receives is free, and what it sends is computed.
bool RunningCollective::MayStart(size_t round) const {
  return queue_->Done(rounds_[round].gathers ? sum_ : sums_[round % halves_]);
}

std::vector<std::vector<ByteRange>> EqualShards(int64_t bytes, int64_t members, int64_t align) {
  const auto begin = [&](int64_t member) {
    return std::min(bytes, (bytes * member / members + align - 1) / align * align);
  };
  std::vector<std::vector<ByteRange>> shards;
  for (int64_t k = 0; k < members; ++k)
    shards.push_back({{begin(k), (k + 1 == members ? bytes : begin(k + 1)) - begin(k)}});
  return shards;
}

Status RunningCollective::StartRound() {
  if (started_ || !MayStart(round_)) return {};
  started_ = true;
  return StartTransfers(round_);
}

Status RunningCollective::StartTransfers(size_t round) {
  transfers_.clear();
  for (Move& move : rounds_[round].moves) {
    transfers_.push_back({move.port, move.slot != nullptr ? move.slot : value_ + move.range.begin,
                          move.range.bytes});
    move.under_way = true;
  }
  return transport_->StartTogether(transfers_);
}

Status RunningCollective::TestRound(bool* over) {
  *over = started_;
  if (!started_) return {};
  for (Move& move : rounds_[round_].moves) {
    bool moved = true;
    if (move.under_way) PP_RETURN_IF_ERROR(transport_->Test(move.port, &moved));
    move.under_way = !moved;
    *over = *over && moved;
  }
  if (*over) started_ = false;
  return {};
}

}  // namespace pp
