#include "runtime/run/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "runtime/run/settings.h"
#include "runtime/run/step_reports.h"

namespace pp {

void Reporter::Start(Rank* rank) {
  rank_ = rank;
  best_ = inputs_.best();
  thread_ = std::thread([this] { Main(); });
}

void Reporter::AllEnded() {
  all_ended_.store(true);
  news_.Ring();
}

void Reporter::Join() {
  if (thread_.joinable()) thread_.join();
}

void Reporter::Main() {
  std::vector<ControlMessage> reports;
  while (true) {
    const uint64_t seen = news_.rings();
    const bool all_ended = all_ended_.load();
    Status status;
    while (status.ok() && !failed_ && board_.Take(last_step_ + 1, &reports))
      status = Caught([&] { return Report(reports); });
    if (!status.ok()) {
      failed_ = true;
      rank_->Fail(status);
    }
    if (all_ended) break;
    news_.Wait(seen);
  }
  done_.store(true);
  news_.Ring();
}

Status Reporter::Report(const std::vector<ControlMessage>& reports) {
  PP_RETURN_IF_ERROR(CheckNumbers(program_, inputs_, reports));
  ++last_step_;
  if (options_.on_step) {
    const Result<StepReport> step = Combine(program_, inputs_, reports);
    PP_RETURN_IF_ERROR(step.status());
    const FileOperation operation(&files_, "write", "the log");
    PP_RETURN_IF_ERROR(options_.on_step(*step));
  }
  FinishSaving(reports);
  rank_->Consumed(last_step_);
  return {};
}

// Of every copy's weights.
int64_t Reporter::UpdatesPerStep() const {
  const DeviceList& list = program_.lists[TopologyOf(program_).PlaceOf(rank_->rank()).device];
  const auto first = std::find_if(list.body.begin(), list.body.end(),
                                  [](const Instruction& i) { return i.op == Op::kStep; });
  return first == list.body.end() ? 0 : UpdatesOf(list, first->stage, first->pipe);
}

// A checkpoint of this step, if there is one. If it cannot be saved, the training goes on, and the
// next one is tried.
void Reporter::FinishSaving(const std::vector<ControlMessage>& reports) {
  if (options_.save_to == nullptr || reports[0].save == ControlMessage::Save::kNone) return;
  const int64_t step = inputs_.steps_before() + last_step_;
  const auto before = best_;
  if (const std::optional<double> loss = ValidationLoss(program_, inputs_, reports);
      loss && options_.keep_best && (!best_ || *loss < best_->loss))
    best_ = {step, *loss, inputs_.measured().data, inputs_.measured().targets};
  unsaved_ = Save(step, reports);
  if (!unsaved_.ok()) {
    best_ = before;
    rank_->SetLeastLoss(best_ ? std::optional(best_->loss) : std::nullopt);
  }
  if (unsaved_.ok()) {
    saved_step_ = step;
    return;
  }
  unsaved_ = unsaved_.In(fmt::format("--save: step {} is not saved", step));
  options_.save_to->Drop(step);
  if (options_.on_note) options_.on_note(unsaved_.message());
}

Status Reporter::Save(int64_t step, const std::vector<ControlMessage>& reports) {
  for (const ControlMessage& report : reports)
    if (report.save != ControlMessage::Save::kWritten) return Status::Failed(report.text);
  const kernels::LossScale& scaling = reports[0].scaling;
  const bool scales = InfoOf(program_.job->dtype).scales_loss;
  const Batches& batches = inputs_.batches();
  const Position position = batches.Before(last_step_ + 1);
  const Result<int64_t> empty = batches.EmptySteps(last_step_ + 1);
  PP_RETURN_IF_ERROR(empty.status());
  std::vector<std::string> notes;
  PP_RETURN_IF_ERROR(options_.save_to->Finish(
      {.model = ToJson(program_.job->model),
       .lora = TextOf(program_.job->lora),
       .step = step,
       .updates = inputs_.updates_before() + (last_step_ - *empty) * UpdatesPerStep(),
       .by_epochs = options_.epochs > 0,
       .pass = position.pass,
       .sequence = position.sequence,
       .sequences = batches.CountedBefore(last_step_ + 1),
       .sequence_length = program_.job->sequence_length,
       .data = inputs_.data_digest(),
       .seed = inputs_.seed(),
       .options = NumberSettings(program_, options_),
       .loss_scale = scales ? scaling.scale : 0,
       .good_steps = scaling.good,
       .skipped = scaling.skipped,
       .best = best_,
       .shards = {}},
      TopologyOf(program_).ranks(), &files_, &notes));
  for (const std::string& note : notes)
    if (options_.on_note) options_.on_note(note);
  return {};
}

}  // namespace pp
