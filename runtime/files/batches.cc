#include "runtime/files/batches.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/files/permutation.h"

namespace pp {

Batches::Batches(const Args& args) : args_(args) {
  PP_CHECK(!args.shuffle || args.repeat_after == 0);
  if (args.epochs > 0) pass_ = args.dataset->sequences();
  if (args.repeat_after > 0)
    pass_ = std::min(args.dataset->sequences(), args.repeat_after * PerStep());
}

int64_t Batches::Steps() const {
  const int64_t passes = args_.epochs - args_.from.pass;  // with the one that is under way
  return passes <= 0 ? 0 : StepsFor(pass_ - args_.from.sequence) + (passes - 1) * StepsFor(pass_);
}

Position Batches::Before(int64_t step) const {
  const auto [pass, sequence] = args_.from;
  if (pass_ == 0) {
    const int64_t at = sequence + (step - 1) * PerStep(), all = args_.dataset->sequences();
    return {pass + at / all, at % all};
  }
  const int64_t first = StepsFor(pass_ - sequence), each = StepsFor(pass_);
  const int64_t later = step - 1 - first;  // steps of later passes
  if (later < 0) return {pass, sequence + (step - 1) * PerStep()};
  return {pass + 1 + later / each, later % each * PerStep()};
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
Status Batches::ForEachSequence(int64_t step, int replica, int micro, F f) const {
  const int64_t first = (int64_t{replica} * args_.microbatches + micro) * args_.micro_batch_size;
  for (int64_t i = first; i < first + args_.micro_batch_size; ++i)
    PP_RETURN_IF_ERROR(f(InData(PlaceOf(step, i))));
  return {};
}

template <typename F>
Status Batches::ForEachRun(int64_t step, F f) const {
  const int64_t end = pass_ > 0 ? pass_ : args_.dataset->sequences();
  for (int64_t i = 0, count = 0; i < PerStep(); i += count) {
    const Position place = PlaceOf(step, i);
    if (place.sequence >= end) break;
    count = args_.shuffle ? 1 : std::min(end - place.sequence, PerStep() - i);
    PP_RETURN_IF_ERROR(f(InData(place), count));
  }
  return {};
}

int64_t Batches::Positions(int64_t step) const {
  int64_t positions = 0;
  const Status status = ForEachRun(step, [&](int64_t n, int64_t count) {
    positions += args_.dataset->Positions(n, count);
    return Status();
  });
  PP_CHECK(status.ok());
  return positions;
}

Result<int64_t> Batches::Count(int64_t step) const {
  int64_t tokens = 0;
  PP_RETURN_IF_ERROR(ForEachRun(step, [&](int64_t n, int64_t count) {
    const Result<int64_t> counted = args_.dataset->Counted(n, count);
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
  return ForEachSequence(step, replica, micro, [&](int64_t n) {
    int32_t* out = std::exchange(inputs, inputs + args_.sequence_length);
    if (n >= 0) return args_.dataset->Inputs(n, out);
    std::fill_n(out, args_.sequence_length, 0);
    return Status();
  });
}

Status Batches::Targets(int64_t step, int replica, int micro, int32_t* targets) const {
  return ForEachSequence(step, replica, micro, [&](int64_t n) {
    int32_t* out = std::exchange(targets, targets + args_.sequence_length);
    if (n >= 0) return args_.dataset->Targets(n, out);
    std::fill_n(out, args_.sequence_length, -1);
    return Status();
  });
}

Status Batches::DocumentPositions(int64_t step, int replica, int micro, int32_t* positions) const {
  return ForEachSequence(step, replica, micro, [&](int64_t n) {
    int32_t* out = std::exchange(positions, positions + args_.sequence_length);
    if (n >= 0) return args_.dataset->DocumentPositions(n, out);
    std::iota(out, out + args_.sequence_length, 0);
    return Status();
  });
}

// A document's positions p make up its length's square: the sum of 2p + 1.
Result<double> Batches::MeanDocument(int64_t first_step, int64_t last_step) const {
  std::vector<int32_t> positions(int64_t{args_.micro_batch_size} * args_.sequence_length);
  double squares = 0, tokens = 0;
  for (int64_t step = first_step; step <= last_step; ++step)
    for (int micro = 0; micro < args_.microbatches; ++micro) {
      PP_RETURN_IF_ERROR(DocumentPositions(step, 0, micro, positions.data()));
      for (const int32_t position : positions) squares += 2.0 * position + 1;
      tokens += static_cast<double>(positions.size());
    }
  return squares / tokens;
}

}  // namespace pp
