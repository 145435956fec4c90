#include "runtime/run/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include "runtime/run/step_reports.h"

namespace pp {

void Reporter::Start(Rank* rank) {
  rank_ = rank;
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
    try {
      while (status.ok() && !failed_ && board_.Take(last_step_ + 1, &reports))
        status = Report(reports);
    } catch (const std::bad_alloc&) {
      status = Status::Failed("out of memory");
    }
    busy_.store(false);
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
  busy_.store(true);
  if (options_.on_step) PP_RETURN_IF_ERROR(options_.on_step(Combine(program_, inputs_, reports)));
  if (options_.save_to != nullptr) PP_RETURN_IF_ERROR(FinishSaving(reports[0].scaling));
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

// All ranks have written their parts of a checkpoint, if there is one of this step.
Status Reporter::FinishSaving(const kernels::LossScale& scaling) {
  const int64_t step = inputs_.steps_before() + last_step_;
  const std::string folder = SavingFolder(options_.save, step);
  std::error_code error;
  const bool saves = std::filesystem::exists(folder, error);
  if (error) return Status::Failed(fmt::format("{}: {}", folder, error.message()));
  if (!saves) return {};
  const bool scales = InfoOf(program_.job->dtype).scales_loss;
  PP_RETURN_IF_ERROR(options_.save_to->Finish(
      {.model = ToJson(program_.job->model),
       .step = step,
       .updates = inputs_.updates_before() + last_step_ * UpdatesPerStep(),
       .by_epochs = options_.epochs > 0,
       .sequences = inputs_.sequences_before() + last_step_ * inputs_.batches().PerStep(),
       .seed = inputs_.seed(),
       .loss_scale = scales ? scaling.scale : 0,
       .good_steps = scaling.good,
       .skipped = scaling.skipped,
       .shards = {}},
      TopologyOf(program_).ranks()));
  saved_step_ = step;
  return {};
}

}  // namespace pp
