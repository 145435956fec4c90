#include "runtime/run/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <future>
#include <memory>
#include <thread>

#include "runtime/comm/agree.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/device/cpu_device.h"
#include "runtime/files/batches.h"
#include "runtime/files/dataset.h"
#include "runtime/model/cpu_executor.h"
#include "runtime/run/board.h"
#include "runtime/run/export.h"
#include "runtime/run/gather.h"
#include "runtime/run/stall_watch.h"
#include "schema/sections.h"

namespace pp {
namespace {

// How often the supervisor looks at signals, and at most how often ranks give signs.
constexpr double kTickSeconds = 0.1;

class Supervisor {
 public:
  Supervisor(const Program& program, const TrainOptions& options)
      : program_(program),
        options_(options),
        topology_(TopologyOf(program)),
        optimizer_(options.optimizer),
        board_(topology_.ranks()),
        watch_(topology_.ranks(), Steers() ? options.stall_timeout : 1.5 * options.stall_timeout) {}

  TrainReport Run() {
    report_.status = Begin();
    if (report_.status.ok()) {
      for (auto& rank : ranks_) rank->Start();
      Supervise();
    } else {
      for (auto& rank : ranks_) rank->Cancel();
    }
    for (auto& rank : ranks_) rank->Join();
    if (report_.status.ok()) Finish();
    return std::move(report_);
  }

 private:
  bool Steers() const { return options_.transport == nullptr || options_.transport->rank() == 0; }

  // All ranks are ready, and the caller wants it.
  Status Begin() {
    // Beside other processes on a thread of its own: opening the data may take longer than they
    // wait for a sign of life.
    const bool alone = options_.transport == nullptr;
    std::future<Status> setup = std::async(alone ? std::launch::deferred : std::launch::async,
                                           [this] { return BeginSetup(); });
    std::optional<Status> begun;
    if (alone) begun = setup.get();
    auto ready = [&]() -> std::optional<Readiness> {
      if (!begun) {
        if (setup.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
          return std::nullopt;
        begun = setup.get();
      }
      if (!begun->ok()) return Readiness{.status = *begun};
      Readiness mine{.items = items_};
      for (auto& rank : ranks_) {
        if (!rank->ready()) return std::nullopt;
        if (mine.status.ok()) mine.status = rank->setup_status();
      }
      return mine;
    };
    PP_RETURN_IF_ERROR(Together(ready));
    const Status wanted = options_.on_begin ? options_.on_begin() : Status();
    return Together([&] { return Readiness{.status = wanted}; });
  }

  Status Together(const AskReady& ready) {
    if (options_.transport != nullptr)
      return Agree(*options_.transport, options_.stall_timeout, ready);
    while (true) {
      const uint64_t seen = news_.rings();
      if (const auto mine = ready()) return mine->status;
      news_.Wait(seen);
    }
  }

  Status BeginSetup() {
    if (options_.resume) PP_RETURN_IF_ERROR(Resume());
    PP_RETURN_IF_ERROR(OpenData());
    if (!options_.val_data.empty()) PP_RETURN_IF_ERROR(OpenValidation());
    if (options_.sample > 0) PP_RETURN_IF_ERROR(OpenSample());
    if (options_.transport != nullptr) PP_RETURN_IF_ERROR(DigestInputs());
    std::vector<Transport*> transports{options_.transport};
    if (options_.transport == nullptr) {
      own_transports_ = MakeInProcessTransports(topology_.ranks());
      transports.clear();
      for (auto& transport : own_transports_) transports.push_back(transport.get());
    }
    for (Transport*& transport : transports) {
      auto wrap = [&](std::unique_ptr<Transport> around) {
        wrappers_.push_back(std::move(around));
        transport = wrappers_.back().get();
      };
      if (options_.network) wrap(MakeSlowTransport(transport, *options_.network));
      if (options_.wrap_transport) wrap(options_.wrap_transport(transport));
    }
    for (Transport* transport : transports) ranks_.push_back(MakeRank(transport));
    for (auto& rank : ranks_) PP_RETURN_IF_ERROR(rank->BeginSetup());
    return {};
  }

  // Every process finds the same one.
  Status Resume() {
    std::vector<std::string> notes;
    auto found = FindCheckpoint(options_.save, program_.job->model, &notes);
    PP_RETURN_IF_ERROR(found.status().In("--resume"));
    checkpoint_.emplace(std::move(*found));
    const Manifest& manifest = checkpoint_->manifest;
    if (options_.seed && *options_.seed != manifest.seed)
      return Status::Invalid(fmt::format("--seed: {} ({} has {})", *options_.seed,
                                         checkpoint_->folder, manifest.seed));
    if (options_.epochs == 0 && manifest.step >= optimizer_.steps)
      return Status::Invalid(fmt::format("--steps: {} ({} has {} already)", optimizer_.steps,
                                         checkpoint_->folder, manifest.step));
    if (manifest.by_epochs != (options_.epochs > 0))
      return Status::Invalid(fmt::format("--resume: {} counts {} (--{})", checkpoint_->folder,
                                         manifest.by_epochs ? "epochs" : "steps",
                                         manifest.by_epochs ? "epochs" : "steps"));
    if (options_.save_to != nullptr) options_.save_to->GoOnFrom(manifest.step);
    if (Steers() && options_.on_note) {
      for (const std::string& note : notes) options_.on_note("not used: " + note);
      options_.on_note(fmt::format("goes on from {}", checkpoint_->folder));
    }
    return {};
  }

  // Of the training, before the first step of this run.
  int64_t StepsBefore() const { return checkpoint_ ? checkpoint_->manifest.step : 0; }
  int64_t UpdatesBefore() const { return checkpoint_ ? checkpoint_->manifest.updates : 0; }
  // Of every copy's weights.
  int64_t UpdatesPerStep() const {
    const std::vector<Instruction>& list =
        program_.lists[topology_.PlaceOf(ranks_[0]->rank()).device].body;
    int64_t updates = 0;
    const Instruction* first = nullptr;
    for (const Instruction& i : list) {
      if (i.op != Op::kStep) continue;
      if (first == nullptr) first = &i;
      updates += i.stage == first->stage && i.pipe == first->pipe;
    }
    return updates;
  }
  int64_t SequencesBefore() const { return checkpoint_ ? checkpoint_->manifest.sequences : 0; }
  uint64_t Seed() const {
    return checkpoint_ ? checkpoint_->manifest.seed : options_.seed.value_or(1);
  }

  // What must be the same on all ranks, although each one has read its own.
  Status DigestInputs() {
    const Result<uint64_t> data = dataset_->Digest();
    PP_RETURN_IF_ERROR(data.status());
    items_.push_back({"--data", *data});
    if (val_dataset_) {
      const Result<uint64_t> val_data = val_dataset_->Digest();
      PP_RETURN_IF_ERROR(val_data.status());
      items_.push_back({"--val-data", *val_data});
    }
    uint64_t resumed = 0;
    if (checkpoint_)
      for (const ShardReader& shard : checkpoint_->shards)
        resumed = resumed * 0x9E3779B97F4A7C15u + shard.footer_sum();
    items_.push_back({"--resume", resumed});
    if (options_.weights.empty()) return {};
    const Result<uint64_t> weights = WeightFiles::Digest(options_.weights);
    PP_RETURN_IF_ERROR(weights.status());
    items_.push_back({"--weights", *weights});
    return {};
  }

  Status OpenData() {
    const Job& job = *program_.job;
    Result<Dataset> dataset =
        Dataset::Open(options_.data,
                      {.vocab_size = job.model.vocab_size, .sequence_length = job.sequence_length});
    PP_RETURN_IF_ERROR(dataset.status());
    dataset_ = std::make_unique<Dataset>(std::move(*dataset));
    batches_ = std::make_unique<Batches>(Batches::Args{.dataset = dataset_.get(),
                                                       .replicas = program_.replicas,
                                                       .microbatches = program_.microbatches,
                                                       .micro_batch_size = job.micro_batch_size,
                                                       .sequence_length = job.sequence_length,
                                                       .epochs = options_.epochs,
                                                       .sequences_before = SequencesBefore()});
    if (options_.epochs > 0) {
      optimizer_.steps = batches_->Steps();
      if (SequencesBefore() != StepsBefore() * batches_->PerStep())
        return Status::Invalid(
            fmt::format("--epochs: {} was trained with other batches than the plan's {} sequences "
                        "(--steps)",
                        checkpoint_->folder, batches_->PerStep()));
      if (StepsBefore() >= optimizer_.steps)
        return Status::Invalid(fmt::format("--epochs: {} ({} has them already)", options_.epochs,
                                           checkpoint_->folder));
    }
    report_.planned_steps = optimizer_.steps;
    return {};
  }

  // It goes on from what the validation's data begins with, or else the training's.
  Status OpenSample() {
    constexpr int kPrompt = 16;
    const Dataset& dataset = val_dataset_ ? *val_dataset_ : *dataset_;
    std::vector<int32_t> first(program_.job->sequence_length);
    PP_RETURN_IF_ERROR(dataset.Inputs(0, first.data()));
    first.resize(std::min<size_t>(kPrompt, first.size()));
    sample_ = {options_.sample, first, options_.temperature};
    report_.prompt = static_cast<int64_t>(first.size());
    report_.text = dataset.is_text();
    return {};
  }

  Status OpenValidation() {
    constexpr int64_t kBatches = 10;
    if (options_.val_every > 0 && HasSections(program_))
      return Status::Invalid(fmt::format(
          "--val-every: {} (steps of {} overlap: there is a validation loss behind the last one)",
          options_.val_every, program_.scheme));
    const Job& job = *program_.job;
    Result<Dataset> dataset =
        Dataset::Open(options_.val_data,
                      {.vocab_size = job.model.vocab_size, .sequence_length = job.sequence_length});
    PP_RETURN_IF_ERROR(dataset.status());
    val_dataset_ = std::make_unique<Dataset>(std::move(*dataset));
    Batches::Args args{.dataset = val_dataset_.get(),
                       .replicas = program_.replicas,
                       .microbatches = program_.microbatches,
                       .micro_batch_size = job.micro_batch_size,
                       .sequence_length = job.sequence_length};
    const int64_t there = val_dataset_->sequences() / Batches(args).PerStep();
    args.again_after = options_.val_batches.value_or(std::min(kBatches, there));
    if (there == 0)
      return Status::Invalid(
          fmt::format("--val-data: {}: has {} sequences of {} tokens (a batch "
                      "takes {})",
                      options_.val_data, val_dataset_->sequences(), job.sequence_length,
                      Batches(args).PerStep()));
    if (args.again_after > there)
      return Status::Invalid(fmt::format("--val-batches: {} ({} has {} batches of {} sequences)",
                                         args.again_after, options_.val_data, there,
                                         Batches(args).PerStep()));
    val_batches_ = std::make_unique<Batches>(args);
    validation_ = {val_batches_.get(), args.again_after, options_.val_every};
    return {};
  }

  std::unique_ptr<Rank> MakeRank(Transport* transport) {
    const int rank = transport->rank();
    return std::make_unique<Rank>(Rank::Args{
        .program = &program_,
        .transport = transport,
        .batches = batches_.get(),
        .make_device =
            [this, rank](const DeviceBells& bells) {
              return options_.make_device ? options_.make_device(rank, bells) : MakeCpuDevice();
            },
        .make_executor = [this, rank](Peers* peers) { return MakeExecutor(rank, peers); },
        .open_weights =
            [this] {
              return options_.weights.empty()
                         ? WeightSource::New(Seed())
                         : WeightSource::Open(options_.weights, program_.job->model);
            },
        .after_bind = options_.after_bind,
        .steps = optimizer_.steps - StepsBefore(),
        .steps_before = StepsBefore(),
        .updates_before = UpdatesBefore(),
        .resume = checkpoint_ ? &*checkpoint_ : nullptr,
        .save = options_.save,
        .save_every = options_.save_every,
        .validation = validation_,
        .sample = sample_,
        .record = options_.record,
        .observer = options_.observer,
        .news = &news_,
        .on_message = [this](int from,
                             const ControlMessage& message) { board_.Put(from, message); }});
  }

  std::unique_ptr<StageExecutor> MakeExecutor(int rank, Peers* peers) const {
    if (options_.make_executor) return options_.make_executor(rank);
    const Place place = topology_.PlaceOf(rank);
    return MakeCpuExecutor({.program = &program_,
                            .device = place.device,
                            .replica = place.replica,
                            .index = place.index,
                            .peers = peers,
                            .seed = Seed(),
                            .threads = options_.threads,
                            .optimizer = optimizer_});
  }

  // This thread watches; another one tells the caller, who may take his time: a terminal that
  // is held must neither hide Ctrl-C nor look like a stalled run.
  void Supervise() {
    std::thread reporter;
    reported_.store(!Steers());
    if (Steers()) reporter = std::thread([this] { ReportSteps(); });
    double last = SteadySeconds();
    while (!(ended_.load() && reported_.load())) {
      const uint64_t seen = news_.rings();
      PassRequests();
      const double now = SteadySeconds();
      if (now - last >= kTickSeconds) {
        if (!ended_.load()) Tick();
        last = now;
      }
      if (ranks_[0]->failed()) FollowFailure(now);
      if (!ended_.load() && AllEnded()) {
        ended_.store(true);
        news_.Ring();
      } else {
        news_.WaitFor(seen, std::chrono::microseconds(static_cast<int64_t>(kTickSeconds * 1e6)));
      }
    }
    if (reporter.joinable()) reporter.join();
  }

  bool AllEnded() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank->ended(); });
  }

  void FollowFailure(double now) {
    if (failed_at_ == 0) {
      failed_at_ = now;
      const bool speaks = Steers() || (report_.orphaned && options_.transport->rank() == 1);
      if (speaks && options_.on_failure) options_.on_failure(ranks_[0]->status());
    }
    if (now - failed_at_ > options_.grace && options_.on_stuck) options_.on_stuck();
  }

  void ReportSteps() {
    std::vector<ControlMessage> reports;
    while (true) {
      const uint64_t seen = news_.rings();
      const bool ended = ended_.load();
      while (!diverged_ && board_.Take(report_.last_step + 1, &reports)) ReportStep(reports);
      if (ended) break;
      news_.Wait(seen);
    }
    reported_.store(true);
    news_.Ring();
  }

  // What is no number, and where; a rank that only has its consequences comes last.
  Status CheckNumbers(const std::vector<ControlMessage>& reports) const {
    // Without the sign that a NaN may have.
    auto text = [](double number) { return std::isnan(number) ? std::abs(number) : number; };
    for (size_t rank = 0; rank < reports.size(); ++rank)
      if (const ControlMessage& report = reports[rank]; report.bad_micro >= 0)
        return Status::Failed(fmt::format("rank {}: step {}: loss of micro-batch {} is {} ({})",
                                          rank, StepsBefore() + report.step, report.bad_micro,
                                          text(report.bad_loss), report.text));
    if (const auto loss = ValidationLoss(reports); loss && !std::isfinite(*loss))
      return Status::Failed(fmt::format("step {}: the validation loss is {}",
                                        StepsBefore() + reports[0].step, text(*loss)));
    for (size_t rank = 0; rank < reports.size(); ++rank)
      if (!std::isfinite(reports[rank].grad_norm))
        return Status::Failed(fmt::format("rank {}: step {}: the gradient's norm is {}", rank,
                                          StepsBefore() + reports[rank].step,
                                          text(reports[rank].grad_norm)));
    return {};
  }

  // The mean over the validation's tokens, where there was one behind the step.
  std::optional<double> ValidationLoss(const std::vector<ControlMessage>& reports) const {
    if (!reports[0].evaluated) return std::nullopt;
    double sum = 0;
    for (const ControlMessage& report : reports) sum += report.val_loss;
    return sum / static_cast<double>(validation_.count * val_batches_->Tokens(1));
  }

  void ReportStep(const std::vector<ControlMessage>& reports) {
    if (const Status numbers = CheckNumbers(reports); !numbers.ok()) {
      diverged_ = true;
      ranks_[0]->Fail(numbers);
      return;
    }
    ++report_.last_step;
    reporting_.store(true);
    Status status = options_.on_step ? options_.on_step(Combine(reports)) : Status();
    if (status.ok()) status = FinishSaving();
    reporting_.store(false);
    if (!status.ok()) ranks_[0]->Fail(status);
    ranks_[0]->Consumed(report_.last_step);
  }

  // All ranks have written their parts of a checkpoint, if there is one of this step.
  Status FinishSaving() {
    if (options_.save_to == nullptr) return {};
    const int64_t step = StepsBefore() + report_.last_step;
    if (!std::filesystem::exists(SavingFolder(options_.save, step))) return {};
    PP_RETURN_IF_ERROR(options_.save_to->Finish(
        {.model = ToJson(program_.job->model),
         .step = step,
         .updates = UpdatesBefore() + report_.last_step * UpdatesPerStep(),
         .by_epochs = options_.epochs > 0,
         .sequences = SequencesBefore() + report_.last_step * batches_->PerStep(),
         .seed = Seed(),
         .shards = {}},
        topology_.ranks()));
    report_.saved_step = step;
    return {};
  }

  StepReport Combine(const std::vector<ControlMessage>& reports) const {
    StepReport step;
    step.step = StepsBefore() + reports[0].step;
    const auto tokens = static_cast<double>(batches_->Tokens(reports[0].step));
    for (const ControlMessage& report : reports) {
      step.loss += report.loss;
      step.peak_bytes.push_back(report.peak_bytes);
    }
    step.loss /= tokens;
    step.val_loss = ValidationLoss(reports);
    step.steps = optimizer_.steps;
    if (program_.clip) step.grad_norm = reports[0].grad_norm;
    step.learning_rate = LearningRate(optimizer_, step.step);
    step.seconds = reports[0].seconds;
    step.tokens_per_second = tokens / step.seconds;
    return step;
  }

  void PassRequests() {
    const int requests = options_.stop_requests == nullptr ? 0 : options_.stop_requests->load();
    if (requests >= 1)
      for (auto& rank : ranks_) rank->AskToStop();
    if (requests >= 2) ranks_[0]->Fail(Status::Failed("stopped in the middle of a step"));
  }

  void Tick() {
    for (auto& rank : ranks_) rank->PostSign();
    board_.TakeSigns([&](int rank, const ControlMessage& sign) {
      if (sign.type == ControlMessage::Type::kBye) return watch_.Finished(rank);
      // Elsewhere any sign from rank 0 will do: it is the one that watches.
      const bool watched = Steers() || rank != 0;
      watch_.Sign(rank, watched ? sign.executed : ++signs_of_steerer_, sign.text);
    });
    if (reporting_.load() || !watch_.Tick(kTickSeconds) || ranks_[0]->failed()) return;
    const bool first =
        ranks_[0]->Fail(Status::Failed(Steers() ? watch_.Text() : "rank 0 does not answer"));
    report_.orphaned = first && !Steers();
  }

  void Finish() {
    report_.status = ranks_[0]->status();
    if (!Steers()) report_.last_step = ranks_[0]->last_step();
    for (auto& rank : ranks_) {
      report_.time.push_back(rank->time());
      rank->AppendEvents(&report_.events);
    }
    // Rank 0 knows: what went wrong behind the last step, the others have not heard of.
    bool complete = report_.status.ok() && !diverged_ &&
                    StepsBefore() + ranks_[0]->last_step() == optimizer_.steps;
    report_.last_step += StepsBefore();
    if (Steers() && report_.status.ok()) report_.sample = ranks_[0]->sample();
    bool gathered = options_.transport == nullptr;
    if (!gathered && ranks_[0]->left_cleanly()) {
      const Status status =
          GatherReports(*options_.transport, &report_.time, &report_.events, &complete);
      gathered = status.ok();
      if (report_.status.ok()) report_.status = status;
    }
    if (options_.exports && gathered && complete) {
      const Status status = Export();
      if (report_.status.ok()) report_.status = status;
    }
    // Before the arenas go.
    if (options_.transport != nullptr) options_.transport->Settle();
    double first = report_.events.empty() ? 0 : report_.events[0].start;
    for (const Event& event : report_.events) first = std::min(first, event.start);
    for (Event& event : report_.events) event.start -= first;
  }

  Status Export() {
    const int first = options_.transport == nullptr ? 0 : options_.transport->rank();
    return ExportModel(
        {.program = &program_,
         .transport = options_.transport,
         .folder = options_.export_to,
         .copy_out = [&](int rank, int stage, int64_t offset, int64_t bytes, void* out) {
           ranks_[rank - first]->CopyWeights(stage, offset, bytes, out);
         }});
  }

  const Program& program_;
  const TrainOptions& options_;
  const Topology topology_;
  OptimizerOptions optimizer_;            // with the steps of all epochs
  std::optional<Checkpoint> checkpoint_;  // what this run goes on from
  TrainReport report_;
  std::vector<Item> items_;
  std::unique_ptr<Dataset> dataset_, val_dataset_;
  std::unique_ptr<Batches> batches_, val_batches_;
  Validation validation_;
  SampleOptions sample_;
  std::vector<std::unique_ptr<Transport>> own_transports_, wrappers_;
  Bell news_;
  Board board_;
  StallWatch watch_;
  bool diverged_ = false;  // a loss or norm is no number; the reporter's
  int64_t signs_of_steerer_ = 0;
  double failed_at_ = 0;                // when this thread saw it; 0: it has not
  std::atomic<bool> ended_{false};      // all ranks
  std::atomic<bool> reported_{false};   // all steps, to the caller
  std::atomic<bool> reporting_{false};  // the caller has a report
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

TrainReport Train(const Program& program, const TrainOptions& options) {
  return Supervisor(program, options).Run();
}

Status CheckRunnable(const Program& program, const std::string& plan, int ranks) {
  if (!program.job)
    return Status::Invalid(
        fmt::format("{}: compiled without a model (pipec compile --model "
                    "config.json --seq-length T)",
                    plan));
  const int needed = TopologyOf(program).ranks();
  if (ranks > 0 && ranks != needed)
    return Status::Invalid(
        fmt::format("{}: compiled for {}{} devices, started with {} ranks (mpiexec -n {})", plan,
                    program.replicas == 1 ? "" : fmt::format("{} replicas of ", program.replicas),
                    program.devices, ranks, needed));
  return {};
}

}  // namespace pp
