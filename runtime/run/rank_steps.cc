// The compute thread of a rank: one step after the other, and what follows some of them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <system_error>
#include <utility>

#include "runtime/comm/clock.h"
#include "runtime/run/rank.h"
#include "schema/text.h"

namespace pp {

template <typename F>
void Rank::WaitUntil(const F& is) {
  bell_.WaitUntil([&] { return is() || signals_.stop.load(); });
}

RankStates Rank::States(int64_t steps) {
  return {
      .program = args_.program,
      .place = place_,
      .device = device_.get(),
      .newest = [this, steps](int stage, int pipe) { return NewestWeights(stage, pipe, steps); },
      .on_piece = [this] { ++signals_.other_progress; },
      .watch = &files_};
}

// Whether this is the last step, as somebody may have asked to stop: rank 0 decides when it lets
// the next step begin.
bool Rank::IsLast(int64_t number) {
  return rank_ == 0 ? number == signals_.last_step.load() : !MayBegin(number + 1);
}

bool Rank::EvaluatesAt(int64_t number) {
  if (!evaluations_->validates()) return false;
  const int64_t every = args_.validation.every, step = args_.steps_before + number;
  return (every > 0 && step % every == 0) || IsLast(number);
}

// The validation after step `number`; its loss goes with the step's report.
Status Rank::Evaluate(int64_t number) {
  PP_RETURN_IF_ERROR(evaluations_->Validate(
      [&](int stage, int pipe) { return NewestSlot(stage, pipe, number); }, &steps_.val_loss));
  PP_RETURN_IF_ERROR(device_->status());
  steps_.evaluated = number;
  return {};
}

// Whether the validation after step `number` has the least loss so far: rank 0 adds up the ranks'
// parts, and tells all.
bool Rank::IsBest(int64_t number) {
  const ControlMessage mine{.type = ControlMessage::Type::kValidation,
                            .step = number,
                            .val_loss = place_.index == 0 ? steps_.val_loss : 0};
  if (rank_ == 0) {
    Judge(0, mine);
  } else {
    control_.Post(0, mine);
  }
  WaitUntil([&] { return signals_.judged.load() == number; });
  return signals_.is_best.load();
}

// Rank 0, on any thread. The sum is that of the report (step_reports.h).
void Rank::Judge(int from, const ControlMessage& message) {
  std::lock_guard<std::mutex> lock(judging_mutex_);
  losses_[from] = message.val_loss;
  double sum = 0;
  for (const int rank : topology_.AllRanks()) {
    if (!losses_[rank]) return;
    sum += *losses_[rank];
  }
  losses_.assign(losses_.size(), std::nullopt);
  const double loss = sum / static_cast<double>(args_.validation.tokens);
  const bool is_best = !least_loss_ || loss < *least_loss_;
  if (is_best) least_loss_ = loss;
  control_.PostAll(
      {.type = ControlMessage::Type::kValidation, .code = is_best, .step = message.step});
  signals_.is_best.store(is_best);
  signals_.judged.store(message.step);
  bell_.Ring();
}

void Rank::SetLeastLoss(std::optional<double> loss) {
  std::lock_guard<std::mutex> lock(judging_mutex_);
  least_loss_ = loss;
}

bool Rank::SavesAt(int64_t number) {
  if (args_.options->save.empty()) return false;
  const int64_t every = args_.options->save_every, step = args_.steps_before + number;
  return (every > 0 && step % every == 0) || IsLast(number);
}

// Writes this rank's part of the checkpoint after step `number`, or, if the disk is full, goes on
// without. The step's report comes later, so that once all reports have arrived all parts are
// complete.
Status Rank::Save(int64_t number) {
  if (signals_.stop.load()) return {};
  const double begin = SteadySeconds();
  const std::string folder = SavingFolder(args_.options->save, args_.steps_before + number);
  std::error_code error;
  steps_.saved = number;
  steps_.unsaved = {};
  try {
    // What fails is tried once more.
    for (int tried = 0; tried < 2 && (tried == 0 || !steps_.unsaved.ok()); ++tried) {
      std::filesystem::create_directory(folder, error);  // by the first rank
      PP_RETURN_IF_ERROR(SaveStates(States(number), ShardPath(folder, rank_), &steps_.unsaved)
                             .In(fmt::format("step {}", args_.steps_before + number)));
    }
  } catch (const std::bad_alloc&) {
    steps_.unsaved = Status::Failed(folder + ": out of memory");
  }
  steps_.saving += SteadySeconds() - begin;
  return device_->status();
}

void Rank::RunSteps() {
  WaitUntil([this] { return signals_.connected.load(); });
  steps_.begin = SteadySeconds();
  device_->compute().Stamp(&steps_.last_end);
  const bool overlaps = args_.program->overlaps;
  const int64_t lag = overlaps ? 1 : 0;  // an iteration ends the step before it
  for (int64_t number = 1;; ++number) {
    BodyPart part = overlaps && number == 1 ? BodyPart::kAhead : BodyPart::kAll;
    if (!MayBegin(number)) {
      if (lag == 0 || number == 1 || signals_.stop.load()) break;
      part = BodyPart::kRest;
    }
    Status status = RunIteration(number, part);
    if (status.ok()) status = device_->status();
    const int64_t step = number - lag;
    bool saves = status.ok() && !signals_.stop.load() && step > 0 && SavesAt(step);
    if (saves) status = Save(step);
    // If steps overlap, the memory is free only after the last one.
    const bool over = lag == 0 || part == BodyPart::kRest;
    const bool evaluates = status.ok() && !signals_.stop.load() && over && EvaluatesAt(step);
    if (evaluates) status = Evaluate(step);
    if (evaluates && status.ok() && args_.options->keep_best && IsBest(step) && !saves) {
      saves = true;
      status = Save(step);
    }
    if (!status.ok()) Fail(status.In("rank " + std::to_string(rank_)));
    if (signals_.stop.load()) return;
    ReportUpTo(step, saves || evaluates ? step : step - 1);
    if (saves || evaluates) steps_.resumed = step + 1;
    if (part == BodyPart::kRest) break;
  }
  if (!signals_.stop.load()) ReportUpTo(signals_.last_step.load(), signals_.last_step.load());
  if (signals_.stop.load() || signals_.last_step.load() < args_.steps) return;
  Status status = evaluations_->Sample(
      [this](int stage, int pipe) { return NewestSlot(stage, pipe, steps_.done); });
  if (status.ok()) status = device_->status();
  if (!status.ok()) Fail(status.In("rank " + std::to_string(rank_)));
}

Status Rank::RunIteration(int64_t number, BodyPart part) {
  signals_.step.store(number);
  if (args_.observer == nullptr) return runners_.Run(RunnerOf(number), number, part);
  args_.observer->Enter(rank_, number);
  Status status = runners_.Run(RunnerOf(number), number, part);
  args_.observer->Leave(rank_, number);
  return status;
}

// Reports the steps that the device is done with, of those up to `finished`, and waits for those up
// to `at_least`.
void Rank::ReportUpTo(int64_t finished, int64_t at_least) {
  while (steps_.done < finished) {
    const StepResult& result = RunnerOf(steps_.done + 1)->result(steps_.done + 1);
    auto done = [&] { return device_->compute().Done(result.end); };
    if (!done() && steps_.done >= at_least) return;
    WaitUntil(done);
    if (signals_.stop.load()) return;
    // On a failed device every ticket is done, but the results mean nothing.
    if (const Status status = device_->status(); !status.ok()) {
      Fail(status.In("rank " + std::to_string(rank_)));
      return;
    }
    ++steps_.done;
    Report(result);
  }
}

bool Rank::MayBegin(int64_t step) {
  auto may = [&] {
    if (step > signals_.last_step.load()) return true;
    return rank_ == 0 ? signals_.consumed.load() >= step - kReportsAhead
                      : signals_.go_step.load() >= step;
  };
  const double begin = SteadySeconds();
  WaitUntil(may);
  steps_.held_back += SteadySeconds() - begin;
  if (signals_.stop.load() || step > signals_.last_step.load()) return false;
  if (rank_ == 0 && step < args_.steps) {
    if (signals_.asked_to_stop.load())
      signals_.last_step.store(std::min(signals_.last_step.load(), step));
    control_.PostAll(
        {.type = ControlMessage::Type::kGo, .step = step + 1, .last = signals_.last_step.load()});
  }
  return true;
}

// Regions count as a whole: they are held, whether or not a kernel has touched their last byte.
int64_t Rank::PeakBytes() const {
  int64_t peak = device_->HighWater();
  for (const Region& region : List().regions) peak = std::max(peak, region.offset + region.bytes);
  return peak + device_->bytes_outside() + executor_->bytes();
}

void Rank::Report(const StepResult& result) {
  const double begin = result.step == steps_.resumed ? result.begin_seconds : steps_.last_end;
  steps_.last_end = result.end_seconds;
  ControlMessage message{.type = ControlMessage::Type::kReport,
                         .step = result.step,
                         .last = signals_.asked_to_stop.load(),
                         .peak_bytes = PeakBytes(),
                         .grad_norm = result.norm,
                         .scaling = result.scaling,
                         .seconds = result.end_seconds - begin};
  if (steps_.saved == result.step) {
    message.save =
        steps_.unsaved.ok() ? ControlMessage::Save::kWritten : ControlMessage::Save::kFailed;
    message.SetText(steps_.unsaved.message());
  }
  message.evaluated = evaluations_->validates() && steps_.evaluated == result.step;
  // All tensor-parallel peers have the same losses.
  if (message.evaluated && place_.index == 0) message.val_loss = steps_.val_loss;
  for (size_t m = 0; m < result.losses.size() && place_.index == 0; ++m) {
    if (result.made_by[m] < 0) continue;
    message.loss += result.losses[m];
    if (std::isfinite(result.losses[m]) || message.bad_micro >= 0) continue;
    message.bad_micro = static_cast<int32_t>(m);
    message.bad_loss = result.losses[m];
    message.SetText(fmt::format("'{}', instruction {}",
                                ToText(RunnerOf(result.step)->bound().list[result.made_by[m]]),
                                result.made_by[m]));
  }
  if (rank_ == 0) {
    args_.on_message(0, message);
    args_.news->Ring();
  } else {
    control_.Post(0, message);
  }
}

void Rank::Consumed(int64_t step) {
  signals_.consumed.store(step);
  bell_.Ring();
  args_.transport->bell().Ring();  // the last one lets this rank leave
}

// Which version of the weights is the newest after so many steps of this run.
int32_t Rank::NewestSlot(int stage, int pipe, int64_t steps) const {
  const Region* region = FindRegion(List(), Kind::kWeights, stage, pipe);
  if (region == nullptr) return 0;
  const int64_t one = LayoutStage(*args_.program->job, stage).weights_bytes;
  return static_cast<int32_t>(steps * UpdatesOf(List(), stage, pipe) % (region->bytes / one));
}

// Its offset in their region.
int64_t Rank::NewestWeights(int stage, int pipe, int64_t steps) const {
  return NewestSlot(stage, pipe, steps) * LayoutStage(*args_.program->job, stage).weights_bytes;
}

}  // namespace pp
