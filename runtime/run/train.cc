#include "runtime/run/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "runtime/comm/agree.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/device/cpu_device.h"
#include "runtime/model/executor.h"
#include "runtime/plan/binding.h"
#include "runtime/record/recording_executor.h"
#include "runtime/run/board.h"
#include "runtime/run/deadline.h"
#include "runtime/run/end.h"
#include "runtime/run/export.h"
#include "runtime/run/inputs.h"
#include "runtime/run/places.h"
#include "runtime/run/reporter.h"
#include "runtime/run/stall_watch.h"

namespace pp {
namespace {

// How often the supervisor looks at stop requests; also the shortest interval between heartbeats.
constexpr double kTickSeconds = 0.1;

class Supervisor {
 public:
  Supervisor(const Program& program, const TrainOptions& options)
      : program_(program),
        options_(options),
        topology_(TopologyOf(program)),
        inputs_(std::make_shared<Inputs>(program, options)),
        board_(topology_.ranks()),
        watch_(topology_.ranks(),
               IsCoordinator() ? options.stall_timeout : 1.5 * options.stall_timeout),
        reporter_(program, options, *inputs_, &board_, &news_) {
    if (options.worker == nullptr) own_worker_.emplace();
    if (options.on_stuck) deadline_.emplace(options.on_stuck);
  }

  TrainReport Run() {
    report_.status = Begin();
    const bool begun = report_.status.ok();
    if (begun) {
      for (auto& rank : ranks_) rank->Start();
      Supervise();
    } else {
      GiveGrace();
      if (IsCoordinator() && options_.on_failure) options_.on_failure(report_.status);
      for (auto& rank : ranks_) rank->Cancel();
    }
    for (auto& rank : ranks_) rank->Join();
    if (begun) ReportSteps();
    EndRun({.program = &program_,
            .options = &options_,
            .inputs = inputs_,
            .ranks = &ranks_,
            .records = &records_,
            .begun = begun,
            .worker = &worker(),
            .deadline = deadline_ ? &*deadline_ : nullptr,
            .report = &report_});
    return std::move(report_);
  }

 private:
  bool IsCoordinator() const {
    return options_.transport == nullptr || options_.transport->rank() == 0;
  }

  Worker& worker() { return own_worker_ ? *own_worker_ : *options_.worker; }

  // Work that a failed run has left on a device may never finish.
  void GiveGrace() {
    if (deadline_) deadline_->Set(options_.grace);
  }

  // All ranks are ready, and the caller agrees to begin.
  Status Begin() {
    PP_RETURN_IF_ERROR(
        CheckPlaces(options_, &worker(), [this](const std::string& note) { Note(note); }));
    if (options_.resume) {
      Result<Checkpoint> checkpoint =
          FindCheckpoint(options_, &worker(), program_.job->model, &not_used_);
      PP_RETURN_IF_ERROR(checkpoint.status().In("--resume"));
      inputs_->GoOnFrom(std::move(*checkpoint));
    }
    // On the worker: opening the data may take longer than other processes wait for a heartbeat.
    Status begun;
    worker().Start([&] {
      begun = Caught([this] { return BeginSetup(); });
      news_.Ring();
    });
    auto ready = [&]() -> std::optional<Readiness> {
      if (!worker().IsOver()) return std::nullopt;
      if (!begun.ok()) return Readiness{.status = begun};
      Readiness mine{.items = items_};
      for (auto& rank : ranks_) {
        if (!rank->ready()) return std::nullopt;
        if (mine.status.ok()) mine.status = rank->setup_status();
      }
      return mine;
    };
    const Status all_ready = Together(ready);
    worker().Wait();
    PP_RETURN_IF_ERROR(all_ready);
    const Status wanted = Caught([this] {
      return options_.on_begin ? options_.on_begin(inputs_->steps_before()) : Status();
    });
    return Together([&] { return Readiness{.status = wanted}; });
  }

  Status Together(const AskReady& ready) {
    if (options_.transport != nullptr)
      return Agree(*options_.transport, options_.stall_timeout, ready);
    while (true) {
      const uint64_t seen = news_.rings();
      if (const auto mine = ready()) return mine->status;
      news_.WaitFor(seen, std::chrono::milliseconds(100));
    }
  }

  Status BeginSetup() {
    PP_RETURN_IF_ERROR(OpenInputs());
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
    records_.resize(transports.size());
    for (Transport* transport : transports) ranks_.push_back(MakeRank(transport));
    for (auto& rank : ranks_) PP_RETURN_IF_ERROR(rank->BeginSetup());
    return {};
  }

  Status OpenInputs() {
    std::vector<std::string> notes = not_used_;
    PP_RETURN_IF_ERROR(inputs_->Open(&notes));
    if (options_.compare)
      PP_RETURN_IF_ERROR(
          CheckComparable(program_, inputs_->optimizer().steps - inputs_->steps_before()));
    if (inputs_->checkpoint() && options_.save_to != nullptr)
      options_.save_to->GoOnFrom(inputs_->steps_before());
    if (options_.save_to != nullptr) {
      const int64_t bytes = CheckpointBytes(*program_.job) + TotalBytes(*inputs_->source());
      PP_RETURN_IF_ERROR(
          options_.save_to->CheckRoom(Saves(), bytes, options_.keep_best ? 1 : 0).In("--save"));
      const bool known = !inputs_->checkpoint() || inputs_->checkpoint()->manifest.source;
      options_.save_to->Keep(known ? inputs_->source() : nullptr);
    }
    if (options_.export_to != nullptr)
      PP_RETURN_IF_ERROR(
          BeginExport({ExportedOf(*program_.job, options_.export_merged), options_.export_dtype},
                      *program_.job, *inputs_->source(), options_.export_to)
              .In(options_.export_merged ? "--export-merged" : "--export"));
    if (IsCoordinator())
      for (const std::string& note : notes) Note(note);
    report_.planned_steps = inputs_->optimizer().steps;
    report_.prompt = static_cast<int64_t>(inputs_->sample().prompt.size());
    report_.text = inputs_->sample_is_text();
    return options_.transport == nullptr ? Status() : inputs_->Digest(&items_);
  }

  // Checkpoints that this run writes.
  int64_t Saves() const {
    const int64_t first = inputs_->steps_before(), last = inputs_->optimizer().steps;
    const auto every = [&](int64_t steps) {
      return steps == 0 ? 1 : last / steps - first / steps + (last % steps != 0);
    };
    return every(options_.save_every) + (options_.keep_best ? every(options_.val_every) : 0);
  }

  std::unique_ptr<Rank> MakeRank(Transport* transport) {
    const int rank = transport->rank();
    return std::make_unique<Rank>(Rank::Args{
        .program = &program_,
        .transport = transport,
        .nccl = options_.nccl ? &*options_.nccl : nullptr,
        .options = &options_,
        .batches = &inputs_->batches(),
        .make_device =
            [this, rank](const DeviceBells& bells) {
              return options_.make_device ? options_.make_device(rank, bells) : MakeCpuDevice();
            },
        .make_executor =
            [this, rank](Device* device, Peers* peers, std::atomic<int64_t>* operators) {
              return MakeExecutor(rank, device, peers, operators);
            },
        .open_weights =
            [this] {
              return OpenWeights({inputs_->seed(), options_.weights, options_.adapter},
                                 *program_.job);
            },
        .after_bind = options_.after_bind,
        .steps = inputs_->optimizer().steps - inputs_->steps_before(),
        .steps_before = inputs_->steps_before(),
        .updates_before = inputs_->updates_before(),
        .resume = inputs_->checkpoint() ? &*inputs_->checkpoint() : nullptr,
        .loss_scale = inputs_->loss_scale(),
        .validation = inputs_->validation(),
        .least_loss = inputs_->best() ? std::optional(inputs_->best()->loss) : std::nullopt,
        .sample = inputs_->sample(),
        .observer = options_.observer,
        .news = &news_,
        .on_message = [this](int from,
                             const ControlMessage& message) { board_.Put(from, message); }});
  }

  std::unique_ptr<StageExecutor> MakeExecutor(int rank, Device* device, Peers* peers,
                                              std::atomic<int64_t>* operators) {
    const Place place = topology_.PlaceOf(rank);
    auto executor =
        options_.make_executor
            ? options_.make_executor(rank)
            : pp::MakeExecutor({.program = &program_,
                                .device = place.device,
                                .replica = place.replica,
                                .index = place.index,
                                .peers = peers,
                                .seed = inputs_->seed(),
                                .optimizer = inputs_->optimizer(),
                                .operators = operators},
                               MakeKernels(program_, place.device, options_.threads, device));
    if (!options_.compare) return executor;
    return MakeRecordingExecutor(std::move(executor),
                                 {.program = &program_,
                                  .place = place,
                                  .peers = peers,
                                  .batches = &inputs_->batches(),
                                  .steps_before = inputs_->steps_before(),
                                  .steps = inputs_->optimizer().steps - inputs_->steps_before(),
                                  .records = &records_[options_.transport == nullptr ? rank : 0]});
  }

  // This thread watches the ranks; the reporter's thread tells the caller about steps.
  void Supervise() {
    if (IsCoordinator()) reporter_.Start(ranks_[0].get());
    for (auto& rank : ranks_) rank->PostHeartbeat();  // before anything else: who they are
    bool ended = false;                               // all ranks
    double last = SteadySeconds();
    while (!ended || (IsCoordinator() && !reporter_.done())) {
      const uint64_t seen = news_.rings();
      PassRequests();
      const double now = SteadySeconds();
      if (now - last >= kTickSeconds) {
        if (!ended) Tick();
        last = now;
      }
      if (ranks_[0]->failed()) FollowFailure();
      if (!ended && AllEnded()) {
        ended = true;
        reporter_.AllEnded();
      } else {
        news_.WaitFor(seen, std::chrono::microseconds(static_cast<int64_t>(kTickSeconds * 1e6)));
      }
    }
    reporter_.Join();
  }

  bool AllEnded() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](auto& rank) { return rank->ended(); });
  }

  void FollowFailure() {
    if (std::exchange(told_failure_, true)) return;
    GiveGrace();
    const bool speaks = IsCoordinator() || (report_.orphaned && options_.transport->rank() == 1);
    if (speaks && options_.on_failure) options_.on_failure(ranks_[0]->status());
  }

  void PassRequests() {
    if (options_.Stops())
      for (auto& rank : ranks_) rank->AskToStop();
    if (options_.StopsNow()) ranks_[0]->Fail(Status::Failed("stopped in the middle of a step"));
    if (!options_.on_look) return;
    if (const Status status = options_.on_look(); !status.ok()) ranks_[0]->Fail(status);
  }

  void Tick() {
    for (auto& rank : ranks_) rank->PostHeartbeat();
    board_.TakeHeartbeats([&](int rank, const ControlMessage& sign) {
      if (sign.type == ControlMessage::Type::kBye) return watch_.Finished(rank);
      // On other ranks any heartbeat from rank 0 counts: rank 0 watches for progress.
      const bool watched = IsCoordinator() || rank != 0;
      // Rank 0 waits for the reporter.
      const bool reports = IsCoordinator() && rank == 0;
      const std::string file = reports ? reporter_.files().current() : "";
      const int64_t reported = reports ? reporter_.files().ended() : 0;
      watch_.Heartbeat(rank,
                       {.progress = watched ? sign.executed + reported : ++heartbeats_of_rank0_,
                        .text = file.empty() ? sign.text : file,
                        .in_file = watched && (sign.in_file || !file.empty()),
                        .step = sign.step,
                        // All threads are in one.
                        .process = options_.transport == nullptr ? "" : sign.process});
    });
    const bool stalls = watch_.Tick(kTickSeconds);
    if (const std::string slow = watch_.TakeSlowFile(); IsCoordinator() && !slow.empty())
      Note(slow);
    if (!stalls || ranks_[0]->failed()) return;
    const bool first =
        ranks_[0]->Fail(Status::Failed(IsCoordinator() ? watch_.Text() : "rank 0 does not answer"));
    report_.orphaned = first && !IsCoordinator();
  }

  void ReportSteps() {
    report_.status = ranks_[0]->status();
    report_.last_step = inputs_->steps_before() +
                        (IsCoordinator() ? reporter_.last_step() : ranks_[0]->last_step());
    report_.saved_step = reporter_.saved_step();
    report_.unsaved = reporter_.unsaved();
    report_.best = reporter_.best();
    if (!options_.profile.empty() && options_.documents && IsCoordinator()) AddDocuments();
  }

  // How long the documents of some steps were.
  void AddDocuments() {
    constexpr int64_t kSteps = 32;
    const int64_t steps = std::min(kSteps, report_.last_step - inputs_->steps_before());
    if (steps < 1) return;
    const Result<double> mean = inputs_->batches().MeanDocument(1, steps);
    if (mean.ok()) report_.document_length = static_cast<int>(std::lround(*mean));
  }

  void Note(const std::string& note) {
    if (options_.on_note) options_.on_note(note);
  }

  const Program& program_;
  const TrainOptions& options_;
  const Topology topology_;
  const std::shared_ptr<Inputs> inputs_;
  std::vector<std::string> not_used_;  // notes on checkpoints
  TrainReport report_;
  std::vector<Item> items_;
  std::vector<std::unique_ptr<Transport>> own_transports_, wrappers_;
  Bell news_;
  Board board_;
  StallWatch watch_;
  Reporter reporter_;
  std::optional<Worker> own_worker_;
  std::optional<Deadline> deadline_;  // none: nobody is told
  int64_t heartbeats_of_rank0_ = 0;
  bool told_failure_ = false;
  std::vector<std::vector<ValueRecord>> records_;  // by rank of this process
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
