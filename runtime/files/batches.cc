#include "runtime/files/batches.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "runtime/files/permutation.h"

namespace pp {

Batches::Batches(const Args& args) : args_(args), shape_of_(args.shapes.ByMicrobatch()) {
  first_of_ = {0};
  for (size_t micro = 0; micro < shape_of_.size(); ++micro)
    first_of_.push_back(first_of_.back() + ExtentOf(static_cast<int>(micro)).sequences);
  PP_CHECK(!args.shuffle || args.repeat_after == 0);
  if (args.epochs > 0) pass_ = args.dataset->sequences();
  if (args.repeat_after > 0)
    pass_ = std::min(args.dataset->sequences(), args.repeat_after * PerStepOf(args.microbatches));
  int microbatches = args.ramp.given() ? 0 : args.microbatches;  // of step 1
  for (const auto& stretch : args.ramp.stretches)
    if (stretch.from <= args.steps_before) microbatches = stretch.microbatches;
  AddStretch(1, microbatches);
  for (const auto& stretch : args.ramp.stretches)
    if (stretch.from > args.steps_before)
      AddStretch(stretch.from - args.steps_before + 1, stretch.microbatches);
}

void Batches::AddStretch(int64_t first, int microbatches) {
  Stretch stretch{first, microbatches, args_.from, args_.sequences_before};
  if (!stretches_.empty()) {
    stretch.from = Before(stretches_.back(), first);
    stretch.counted = CountedBefore(first);
  }
  stretches_.push_back(stretch);
}

const Batches::Stretch& Batches::StretchOf(int64_t step) const {
  size_t last = stretches_.size() - 1;
  while (stretches_[last].first > step && last > 0) --last;
  return stretches_[last];
}

int64_t Batches::CountedBefore(int64_t step) const {
  const Stretch& stretch = StretchOf(step);
  return stretch.counted + (step - stretch.first) * PerStepOf(stretch.microbatches);
}

int Batches::Microbatches(int64_t step) const {
  const Stretch& stretch = StretchOf(step);
  if (pass_ == 0 || args_.sizes.empty()) return stretch.microbatches;
  const int64_t rest = pass_ - Before(stretch, step).sequence;
  for (const int32_t size : args_.sizes)
    if (size >= stretch.microbatches || PerStepOf(size) >= rest)
      return std::min(size, stretch.microbatches);
  return stretch.microbatches;
}

int64_t Batches::Steps() const {
  for (size_t i = 0;; ++i) {
    const Stretch& stretch = stretches_[i];
    const auto [pass, sequence] = stretch.from;
    const int64_t passes = args_.epochs - pass;  // with the one that is under way
    const int64_t steps =
        passes <= 0 ? 0
                    : StepsFor(stretch, pass_ - sequence) + (passes - 1) * StepsFor(stretch, pass_);
    const int64_t end = stretch.first + steps;
    if (i + 1 == stretches_.size() || end <= stretches_[i + 1].first) return end - 1;
  }
}

Position Batches::Before(int64_t step) const { return Before(StretchOf(step), step); }

Position Batches::Before(const Stretch& stretch, int64_t step) const {
  const auto [pass, sequence] = stretch.from;
  const int64_t steps = step - stretch.first, per_step = PerStepOf(stretch.microbatches);
  if (pass_ == 0) {
    const int64_t at = sequence + steps * per_step, all = args_.dataset->sequences();
    return {pass + at / all, at % all};
  }
  const int64_t first = StepsFor(stretch, pass_ - sequence), each = StepsFor(stretch, pass_);
  const int64_t later = steps - first;  // steps of later passes
  if (later < 0) return {pass, sequence + steps * per_step};
  return {pass + 1 + later / each, later % each * per_step};
}

Position Batches::PlaceOf(int64_t step, int64_t i) const {
  Position place = Before(step);
  place.sequence += i;
  if (pass_ == 0) {
    const int64_t all = args_.dataset->sequences();
    place = {place.pass + place.sequence / all, place.sequence % all};
  }
  return place;
}

int64_t Batches::InData(const Position& place) const {
  if (pass_ > 0 && place.sequence >= pass_) return -1;
  if (!args_.shuffle) return place.sequence;
  return Permutation(*args_.shuffle, place.pass, args_.dataset->sequences()).At(place.sequence);
}

template <typename F>
Status Batches::ForEachSequence(int64_t step, int replica, int micro, int32_t* rows, F f) const {
  const int64_t first = IndexOf(step, replica, micro);
  const Extent extent = ExtentOf(micro);
  for (int32_t b = 0; b < extent.sequences; ++b, rows += extent.tokens)
    PP_RETURN_IF_ERROR(
        f(InData(PlaceOf(step, first + b)), std::span(rows, static_cast<size_t>(extent.tokens))));
  return {};
}

template <typename F>
Status Batches::ForEachRun(int64_t step, F f) const {
  const int64_t end = pass_ > 0 ? pass_ : args_.dataset->sequences(), all = PerStep(step);
  const bool one_by_one = args_.shuffle || !shape_of_.empty();
  int micro = 0;  // of sequence i
  for (int64_t i = 0, count = 0; i < all; i += count) {
    const Position place = PlaceOf(step, i);
    if (place.sequence >= end) break;
    count = one_by_one ? 1 : std::min(end - place.sequence, all - i);
    if (shape_of_.empty()) {
      PP_RETURN_IF_ERROR(f(InData(place), count, int64_t{args_.sequence_length}));
      continue;
    }
    const int64_t index = i % first_of_.back();
    if (index == 0) micro = 0;
    while (first_of_[micro + 1] <= index) ++micro;
    PP_RETURN_IF_ERROR(f(InData(place), count, int64_t{ExtentOf(micro).tokens}));
  }
  return {};
}

int64_t Batches::Positions(int64_t step) const {
  int64_t positions = 0;
  const Status status = ForEachRun(step, [&](int64_t n, int64_t count, int64_t length) {
    positions +=
        count == 1 ? args_.dataset->PositionsOf(n, length) : args_.dataset->Positions(n, count);
    return Status();
  });
  PP_CHECK(status.ok());
  return positions;
}

Result<int64_t> Batches::Count(int64_t step) const {
  int64_t tokens = 0;
  PP_RETURN_IF_ERROR(ForEachRun(step, [&](int64_t n, int64_t count, int64_t length) {
    const Result<int64_t> counted =
        count == 1 ? args_.dataset->CountedOf(n, length) : args_.dataset->Counted(n, count);
    if (counted.ok()) tokens += *counted;
    return counted.status();
  }));
  return tokens;
}

Result<int64_t> Batches::TokensLocked(int64_t step) const {
  Counted& counted = counted_[step % kRemembered];
  if (counted.step != step) {
    const Result<int64_t> tokens = Count(step);
    PP_RETURN_IF_ERROR(tokens.status());
    counted = {step, *tokens};
  }
  return counted.tokens;
}

Result<int64_t> Batches::Tokens(int64_t step) const {
  const std::lock_guard lock(mutex_);
  return TokensLocked(step);
}

Result<double> Batches::PerToken(int64_t step) const {
  const Result<int64_t> tokens = Tokens(step);
  PP_RETURN_IF_ERROR(tokens.status());
  return *tokens == 0 ? 0 : 1 / static_cast<double>(*tokens);
}

Result<int64_t> Batches::EmptySteps(int64_t step) const {
  if (!args_.dataset->has_uncounted_targets()) return 0;  // every sequence has targets
  const std::lock_guard lock(mutex_);
  while (asked_ != step) {
    const int64_t between = asked_ < step ? asked_ : asked_ - 1;
    const Result<int64_t> tokens = TokensLocked(between);
    PP_RETURN_IF_ERROR(tokens.status());
    const int64_t one = *tokens == 0 ? 1 : 0;
    empty_ += asked_ < step ? one : -one;
    asked_ += asked_ < step ? 1 : -1;
  }
  return empty_;
}

Status Batches::Inputs(int64_t step, int replica, int micro, int32_t* inputs) const {
  return ForEachSequence(step, replica, micro, inputs, [&](int64_t n, std::span<int32_t> row) {
    if (n >= 0) return args_.dataset->Inputs(n, row);
    std::fill(row.begin(), row.end(), 0);
    return Status();
  });
}

Status Batches::Targets(int64_t step, int replica, int micro, int32_t* targets) const {
  return ForEachSequence(step, replica, micro, targets, [&](int64_t n, std::span<int32_t> row) {
    if (n >= 0) return args_.dataset->Targets(n, row);
    std::fill(row.begin(), row.end(), -1);
    return Status();
  });
}

Status Batches::DocumentPositions(int64_t step, int replica, int micro, int32_t* positions) const {
  return ForEachSequence(step, replica, micro, positions, [&](int64_t n, std::span<int32_t> row) {
    if (n >= 0) return args_.dataset->DocumentPositions(n, row);
    std::iota(row.begin(), row.end(), 0);
    return Status();
  });
}

// A document's positions p make up its length's square: the sum of 2p + 1.
Result<double> Batches::MeanDocument(int64_t first_step, int64_t last_step) const {
  std::vector<int32_t> positions;
  double squares = 0, tokens = 0;
  for (int64_t step = first_step; step <= last_step; ++step)
    for (int micro = 0; micro < Microbatches(step); ++micro) {
      positions.resize(ExtentOf(micro).all());
      PP_RETURN_IF_ERROR(DocumentPositions(step, 0, micro, positions.data()));
      for (const int32_t position : positions) squares += 2.0 * position + 1;
      tokens += static_cast<double>(positions.size());
    }
  return squares / tokens;
}

}  // namespace pp
