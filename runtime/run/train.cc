#include "runtime/run/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "runtime/comm/agree.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/comm/phase.h"
#include "runtime/device/cpu_device.h"
#include "runtime/model/executor.h"
#include "runtime/plan/binding.h"
#include "runtime/record/recording_executor.h"
#include "runtime/run/board.h"
#include "runtime/run/deadline.h"
#include "runtime/run/export.h"
#include "runtime/run/gather.h"
#include "runtime/run/inputs.h"
#include "runtime/run/places.h"
#include "runtime/run/reporter.h"
#include "runtime/run/stall_watch.h"

namespace pp {
namespace {

// How often the supervisor looks at stop requests; also the shortest interval between heartbeats.
constexpr double kTickSeconds = 0.1;
// How long the ranks of a failed run wait for each other at its end; and those of a run that waits
// forever.
constexpr double kFailedEndSeconds = 5, kForeverSeconds = 1e9;

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
        slow_files_(1, options.stall_timeout),
        reporter_(program, options, *inputs_, &board_, &news_) {}

  TrainReport Run() {
    report_.status = Begin();
    if (report_.status.ok()) {
      for (auto& rank : ranks_) rank->Start();
      Supervise();
    } else {
      for (auto& rank : ranks_) rank->Cancel();
    }
    // Work that a failed run has left on a device may never finish.
    std::optional<Deadline> patience;
    if (options_.on_stuck && (!report_.status.ok() || ranks_[0]->failed()))
      patience.emplace(options_.grace, options_.on_stuck);
    for (auto& rank : ranks_) rank->Join();
    if (report_.status.ok()) End();
    if (telling_.valid()) telling_.wait();
    return std::move(report_);
  }

 private:
  bool IsCoordinator() const {
    return options_.transport == nullptr || options_.transport->rank() == 0;
  }

  // All ranks are ready, and the caller agrees to begin.
  Status Begin() {
    PP_RETURN_IF_ERROR(CheckPlaces(options_, [this](const std::string& note) { Note(note); }));
    if (options_.resume) {
      Result<Checkpoint> checkpoint = FindCheckpoint(options_, program_.job->model, &not_used_);
      PP_RETURN_IF_ERROR(checkpoint.status().In("--resume"));
      inputs_->GoOnFrom(std::move(*checkpoint));
    }
    // With other processes, on a thread of its own: opening the data may take longer than they wait
    // for a heartbeat.
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
    const Status wanted = options_.on_begin ? options_.on_begin(inputs_->steps_before()) : Status();
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
    if (options_.save_to != nullptr)
      PP_RETURN_IF_ERROR(
          options_.save_to->CheckRoom(Saves(), CheckpointBytes(*program_.job)).In("--save"));
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
    if (options_.save_every == 0) return 1;
    return last / options_.save_every - first / options_.save_every +
           (last % options_.save_every != 0);
  }

  std::unique_ptr<Rank> MakeRank(Transport* transport) {
    const int rank = transport->rank();
    return std::make_unique<Rank>(Rank::Args{
        .program = &program_,
        .transport = transport,
        .nccl = options_.nccl ? &*options_.nccl : nullptr,
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
              return options_.weights.empty()
                         ? WeightSource::New(inputs_->seed())
                         : WeightSource::Open(options_.weights, program_.job->model);
            },
        .after_bind = options_.after_bind,
        .steps = inputs_->optimizer().steps - inputs_->steps_before(),
        .steps_before = inputs_->steps_before(),
        .updates_before = inputs_->updates_before(),
        .resume = inputs_->checkpoint() ? &*inputs_->checkpoint() : nullptr,
        .loss_scale = inputs_->loss_scale(),
        .save = options_.save,
        .save_every = options_.save_every,
        .validation = inputs_->validation(),
        .sample = inputs_->sample(),
        .record = options_.record,
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
      if (ranks_[0]->failed()) FollowFailure(now);
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

  void FollowFailure(double now) {
    if (failed_at_ == 0) {
      failed_at_ = now;
      const bool speaks = IsCoordinator() || (report_.orphaned && options_.transport->rank() == 1);
      if (speaks && options_.on_failure) options_.on_failure(ranks_[0]->status());
    }
    if (now - failed_at_ > options_.grace && options_.on_stuck) options_.on_stuck();
  }

  void PassRequests() {
    const int requests = options_.stop_requests == nullptr ? 0 : options_.stop_requests->load();
    if (requests >= 1)
      for (auto& rank : ranks_) rank->AskToStop();
    if (requests >= 2) ranks_[0]->Fail(Status::Failed("stopped in the middle of a step"));
  }

  void Tick() {
    for (auto& rank : ranks_) rank->PostHeartbeat();
    board_.TakeHeartbeats([&](int rank, const ControlMessage& sign) {
      if (sign.type == ControlMessage::Type::kBye) return watch_.Finished(rank);
      // On other ranks any heartbeat from rank 0 counts: rank 0 watches for progress.
      const bool watched = IsCoordinator() || rank != 0;
      watch_.Heartbeat(rank, {.progress = watched ? sign.executed : ++heartbeats_of_rank0_,
                              .text = sign.text,
                              .in_file = watched && sign.in_file,
                              .step = sign.step,
                              // All threads are in one.
                              .process = options_.transport == nullptr ? "" : sign.process});
    });
    const bool stalls = watch_.Tick(kTickSeconds);
    if (IsCoordinator()) TellOfSlowFile(&watch_);
    WatchFiles();
    if (reporter_.busy() || !stalls || ranks_[0]->failed()) return;
    const bool first =
        ranks_[0]->Fail(Status::Failed(IsCoordinator() ? watch_.Text() : "rank 0 does not answer"));
    report_.orphaned = first && !IsCoordinator();
  }

  // The end of the run, in phases that all ranks go through together: first what cannot be made
  // again.
  void End() {
    report_.status = ranks_[0]->status();
    report_.last_step = IsCoordinator() ? reporter_.last_step() : ranks_[0]->last_step();
    report_.saved_step = reporter_.saved_step();
    report_.unsaved = reporter_.unsaved();
    const bool complete = report_.last_step + inputs_->steps_before() == inputs_->optimizer().steps;
    report_.last_step += inputs_->steps_before();
    if (IsCoordinator() && report_.status.ok()) report_.sample = ranks_[0]->sample();
    // In time after a failure: a rank may not have got here.
    const bool together = options_.transport == nullptr || ranks_[0]->left_cleanly();
    if (together) EndPhase([this](Exchange*) { return report_.status; });
    if (options_.exports && complete && report_.status.ok()) Export();
    GatherRecords(together);
    // Before the arenas are freed.
    if (options_.transport != nullptr) options_.transport->Settle(EndPatience());
    for (auto& rank : ranks_) rank->SettleMessages();
    double first = report_.events.empty() ? 0 : report_.events[0].start;
    for (const Event& event : report_.events) first = std::min(first, event.start);
    for (Event& event : report_.events) event.start -= first;
  }

  // How long the ranks wait for one that gives no heartbeat.
  double EndPatience() const {
    if (!report_.status.ok()) return kFailedEndSeconds;
    return options_.stall_timeout > 0 ? std::max(options_.stall_timeout, kFailedEndSeconds)
                                      : kForeverSeconds;
  }

  // All ranks get the same status; the first error stays.
  Status EndPhase(const std::function<Status(Exchange*)>& work) {
    const Status status =
        RunPhase({.transport = options_.transport,
                  .patience = EndPatience(),
                  .work = [&](Exchange* exchange) { return Readiness{.status = work(exchange)}; },
                  .on_poll = [this] { WatchFiles(); }});
    if (report_.status.ok()) report_.status = status;
    return status;
  }

  // Rank 0's process: tells the user, once, of an operation that takes long.
  void WatchFiles() {
    const double now = SteadySeconds();
    if (!IsCoordinator() || now - files_looked_at_ < kTickSeconds) return;
    std::string file = reporter_.file();
    if (file.empty()) file = files_.current();
    slow_files_.Heartbeat(0, {.text = file, .in_file = !file.empty()});
    slow_files_.Tick(std::min(now - files_looked_at_, 2 * kTickSeconds));
    files_looked_at_ = now;
    TellOfSlowFile(&slow_files_);
  }

  // On a thread of its own: a paused terminal must not hide Ctrl-C, and the reporter may be what
  // waits for the disk. Without a thread to be had, on this one.
  void TellOfSlowFile(StallWatch* watch) {
    using std::chrono::seconds;
    if (telling_.valid() && telling_.wait_for(seconds(0)) == std::future_status::timeout) return;
    const std::string slow = watch->TakeSlowFile();
    if (slow.empty()) return;
    telling_ = std::async(std::launch::async | std::launch::deferred, [this, slow] { Note(slow); });
    if (telling_.wait_for(seconds(0)) == std::future_status::deferred) telling_.wait();
  }

  void Note(const std::string& note) {
    if (options_.on_note) options_.on_note(note);
  }

  void Export() {
    const int first = options_.transport == nullptr ? 0 : options_.transport->rank();
    const auto copy_out = [&](int rank, int stage, int64_t offset, int64_t bytes, void* out) {
      return ranks_[rank - first]->CopyWeights(stage, offset, bytes, out);
    };
    const Status copied = EndPhase([&](Exchange* exchange) {
      return ExportModel({.program = &program_,
                          .exchange = exchange,
                          .folder = options_.export_to,
                          .copy_out = copy_out});
    });
    if (!copied.ok()) return;
    EndPhase([this](Exchange*) {
      return options_.export_to != nullptr ? options_.export_to->Finish(&files_) : Status();
    });
  }

  void GatherRecords(bool together) {
    for (auto& rank : ranks_) {
      report_.time.push_back(rank->time());
      rank->AppendEvents(&report_.events);
    }
    for (auto& records : records_) {
      report_.records.insert(report_.records.end(), records.begin(), records.end());
      records = {};
    }
    Status gathered = together ? Status() : Status::Failed("");
    if (together && options_.transport != nullptr)
      gathered = EndPhase([this](Exchange* exchange) {
        return GatherReports(*exchange, &report_.time, &report_.events, &report_.records);
      });
    if (gathered.ok()) report_.inputs = inputs_;
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
  StallWatch slow_files_;  // of this thread's phases and of the reporter
  double files_looked_at_ = 0;
  FileWatch files_;
  Reporter reporter_;
  int64_t heartbeats_of_rank0_ = 0;
  double failed_at_ = 0;                           // when this thread saw it; 0: it has not
  std::vector<std::vector<ValueRecord>> records_;  // by rank of this process
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::future<void> telling_;  // of a slow file
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
