#include "runtime/main/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/comm/host_memory.h"
#include "runtime/comm/phase.h"
#include "runtime/compare/comparison.h"
#include "runtime/files/source_files.h"
#include "runtime/files/weight_files.h"
#include "runtime/main/cores.h"
#include "runtime/main/print.h"
#include "runtime/main/stop_signals.h"
#include "runtime/main/transports.h"
#include "runtime/model/products.h"
#include "runtime/run/run_text.h"
#include "schema/format/file.h"
#include "schema/nccl/prove.h"
#include "schema/semantics/regions.h"

namespace pp {

Run::Run(const Arguments& arguments, Backend backend, std::shared_ptr<const GemmTable> gemms,
         SpareDescriptors* spares)
    : arguments_(arguments),
      options_(arguments.train),
      backend_(std::move(backend)),
      gemms_(std::move(gemms)),
      spares_(*spares),
      outputs_(arguments) {
  options_.make_device = backend_.make_device;
  options_.worker = &worker_;
  const std::string& experiments = arguments_.train.cuda_experiments;
  const std::string table = gemms_ != nullptr ? gemms_->Print() : "";
  options_.kernels = {
      {"--backend", arguments_.train.backend},
      {"--weight-rounding", arguments_.train.weight_rounding},
      {"--gemms", table.empty() ? "none" : fmt::format("{:x}", std::hash<std::string>()(table))},
      {"--cuda-experiments", experiments.empty() ? "none" : experiments}};
}

Status Run::Main(Transport* transport) {
  options_.transport = transport;
  PP_RETURN_IF_ERROR(Prepare());
  options_.on_begin = [this](int64_t steps_before) { return Begin(steps_before); };
  options_.on_note = [this](const std::string& note) { Print(note + "\n"); };
  options_.on_step = [this](const StepReport& step) {
    OnStep(step);
    return Status();
  };
  options_.on_failure = [this](const Status& status) {
    spoken_ = true;
    PrintError(status);
  };
  options_.on_stuck = [this] {
    std::error_code error;
    const std::string beside = options_.export_path + ".unfinished";
    const bool exported = options_.exports && std::filesystem::exists(beside, error);
    if (First() && !spoken_)
      PrintError(Status::Failed(
          "stopped at the end of the run" +
          (exported ? fmt::format(" (what was trained may be in {})", beside) : "")));
    std::_Exit(static_cast<int>(Code::kFailed));
  };
  options_.on_look = [this] { return launcher_.Look(); };
  options_.on_end = [this](const TrainReport& report) { return End(report); };
  // mpiexec's exit status is reliable only if all ranks exit with the same one.
  return Train(*program_, options_).status;
}

// What is left to write and to say; the status that this rank ends with.
Status Run::End(const TrainReport& report) {
  Status status = report.status;
  if (status.ok() && report.last_step < report.planned_steps)
    status = Status::Failed(fmt::format("stopped after step {}{}", report.last_step,
                                        options_.exports ? " (nothing is exported)" : ""));
  const auto drawn = static_cast<int64_t>(report.sample.size()) - report.prompt;
  if (status.ok() && First() && drawn < options_.sample)
    status = Status::Failed(fmt::format("stopped after token {} of the sample", drawn));
  if (status.ok()) status = report.unsaved;
  const Status compared = First() ? Finish(report) : Status();
  if (status.ok()) status = compared;
  const Status read = First() ? outputs_.Drain() : Status();
  if (status.ok() && lost_.ok()) status = read;
  if (status.ok() && !lost_.ok()) spoken_ = true;
  return status.ok() ? lost_ : status;
}

bool Run::Speaks(const Status& status) const {
  for (int rank = 0; !First() && rank < options_.transport->rank(); ++rank)
    if (!options_.transport->HasDied(rank) && !options_.transport->Blames(rank, status))
      return false;
  return !spoken_;
}

// Returns the status of the first rank that has an error, on all ranks.
Status Run::Together(const std::function<Readiness()>& work) {
  if (options_.transport == nullptr) return work().status;
  return RunPhase({.transport = options_.transport,
                   .patience = options_.stall_timeout,
                   .worker = &worker_,
                   .work = [&](Exchange*) { return work(); },
                   .on_poll = {}});
}

// Every rank has read the same plan, with the same options, and has the memory for it, before rank
// 0 takes room on a disk.
Status Run::Prepare() {
  PP_RETURN_IF_ERROR(Together([this] { return ReadPlan(); }));
  return Together([this] {
    return Readiness{.status = First() ? outputs_.Open(*program_, &options_) : Status(),
                     .items = {}};
  });
}

Readiness Run::ReadPlan() {
  Readiness mine{.status = Read(), .items = DigestOptions(options_), .gpu = backend_.gpu};
  if (!mine.status.ok()) return mine;
  const std::hash<std::string> digest;
  mine.items.push_back({"PLAN", plan_checksum_});
  mine.items.push_back({"--transport", digest(arguments_.train.transport_name)});
  const Topology topology = TopologyOf(*program_);
  const bool on_host = arguments_.train.backend == "cpu";
  const HostBytesArgs args = HostArgs();
  for (int rank = 0; on_host && First() && rank < topology.ranks(); ++rank)
    mine.bytes.push_back(HostBytesOf(*program_, rank, args));
  if (options_.transport == nullptr && backend_.gpu != 0 && topology.ranks() > backend_.gpus)
    mine.status = Status::Invalid(
        fmt::format("--transport: ranks 0 and {} have one GPU, where NCCL takes a single rank "
                    "(threads, or a GPU for each of {} ranks)",
                    backend_.gpus, topology.ranks()));
  if (on_host && options_.transport == nullptr)
    mine.status = CheckMemory(std::vector<HostMemory>(topology.ranks(), ThisHost()), mine.bytes);
  return mine;
}

HostBytesArgs Run::HostArgs() const {
  int64_t source = 0;
  if (const std::string& weights = options_.weights; !weights.empty())
    source = SourceBytes(WeightFiles::Folder(weights));
  if (options_.resume)
    for (const int64_t step : SavedSteps(options_.save))
      source = std::max(source, SourceBytes(StepFolder(options_.save, step), SourcePartName("")));
  return {.threads = options_.threads,
          .resumes = options_.resume,
          .saves = !options_.save.empty(),
          .exports = options_.exports,
          .source = options_.exports || !options_.save.empty() ? source : 0,
          .processes = options_.transport != nullptr};
}

// Each rank reads its own list. Rank 0 reads all of them and proves the whole plan again, which may
// come from elsewhere. With NCCL every rank does: which messages share a communicator depends on
// all lists.
Status Run::Read() {
  const Transport* transport = options_.transport;
  const bool nccl = TransportOf(arguments_.train.transport_name).nccl;
  auto program = First() || nccl
                     ? Load(arguments_.train.plan, &plan_checksum_)
                     : LoadRank(arguments_.train.plan, transport->rank(), &plan_checksum_);
  PP_RETURN_IF_ERROR(program.status());
  PP_RETURN_IF_ERROR(
      CheckRunnable(*program, arguments_.train.plan, transport ? transport->ranks() : 0));
  program_ = std::move(*program);
  if (!program_->clip && !arguments_.given.contains("--grad-clip"))
    options_.optimizer.grad_clip = 0;
  PP_RETURN_IF_ERROR(CheckOptions());
  if (First() || nccl) {
    PP_RETURN_IF_ERROR(Verify(*program_, Depth::kPlan).In(arguments_.train.plan));
    if (nccl) PP_RETURN_IF_ERROR(ProveForNccl().In(arguments_.train.plan));
  }
  const std::vector<int64_t> added = AddRegions(
      arguments_.train.backend == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu, &*program_);
  added_bytes_ = *std::max_element(added.begin(), added.end());
  return {};
}

// Invalid: an option that does not apply to this plan.
Status Run::CheckOptions() const {
  const Dtype dtype = program_->job->dtype;
  if (!program_->clip && options_.optimizer.grad_clip > 0)
    return Status::Invalid(fmt::format("--grad-clip: {} ({} takes no gradient norm: --grad-clip 0)",
                                       arguments_.given.at("--grad-clip"), arguments_.train.plan));
  for (const char* option : {"--loss-scale", "--loss-scale-every"})
    if (const auto given = arguments_.given.find(option);
        given != arguments_.given.end() && !InfoOf(dtype).scales_loss)
      return Status::Invalid(
          fmt::format("{}: {} ({} has activations of {}: only fp16's loss is scaled)", option,
                      given->second, arguments_.train.plan, NameOf(dtype)));
  if (arguments_.train.weight_rounding == "stochastic" && dtype != Dtype::kBf16)
    return Status::Invalid(
        fmt::format("--weight-rounding: stochastic ({} has activations of {}: a bf16 plan's "
                    "weights alone are rounded so)",
                    arguments_.train.plan, NameOf(dtype)));
  if (arguments_.train.backend == "cuda")
    return CheckForCuda(*program_->job).In(arguments_.train.plan);
  return {};
}

Status Run::ProveForNccl() {
  // Ranks that are threads share the queues of a GPU that they share.
  const bool threads = options_.transport == nullptr;
  const int ranks = threads ? TopologyOf(*program_).ranks() : 1;
  const int of_gpu = (ranks + backend_.gpus - 1) / backend_.gpus;
  const auto needs = nccl::Prove(*program_, {.queues = backend_.queues / of_gpu});
  if (!needs.ok() && of_gpu > 1 && nccl::Prove(*program_, {.queues = backend_.queues}).ok())
    return Status::Invalid(
        fmt::format("{} ranks share a GPU and its {} hardware queues, which are too "
                    "few for their communicators (a GPU for each rank, or threads)",
                    of_gpu, backend_.queues));
  PP_RETURN_IF_ERROR(needs.status());
  options_.nccl = needs->sharings;
  return {};
}

// All ranks are ready.
Status Run::Begin(int64_t steps_before) {
  if (First()) Print(HeaderText(*program_));
  if (gemms_ != nullptr && First()) {
    const std::vector<kernels::MatmulShape> products = AllProducts(*program_->job);
    const int lacks = gemms_->Lacks(products);
    if (lacks > 0)
      options_.on_note(
          fmt::format("{} has no algorithm for {} of {} products, which cuBLASLt chooses (piperun "
                      "--tune-gemms)",
                      arguments_.train.gemms, lacks, products.size()));
  }
  if (!program_->clip && !arguments_.given.contains("--grad-clip") && First())
    options_.on_note(
        fmt::format("{} takes no gradient norm, and so none is clipped (--grad-clip 0)",
                    arguments_.train.plan));
  if (added_bytes_ > 0 && First())
    options_.on_note(
        fmt::format("{} counts the memory of another kind of device: {} bytes a rank "
                    "more here, at most (pipec compile --backend {})",
                    arguments_.train.plan, added_bytes_, arguments_.train.backend));
  const bool alone = options_.transport == nullptr;
  const std::string cores =
      CoresNote(CoresOf(alone ? TopologyOf(*program_).ranks() : 1), options_.threads);
  if (!cores.empty() && First()) options_.on_note(cores);
  options_.stop_requests = CountStopRequests();
  const HostBytesArgs args = HostArgs();
  int64_t held = 0;
  for (int rank = 0; rank < (alone ? TopologyOf(*program_).ranks() : 1); ++rank)
    held += HeldBytesOf(rank, args);
  HoldMemory(held);
  PP_RETURN_IF_ERROR(outputs_.Begin(steps_before));
  spares_.Release();
  return {};
}

void Run::OnStep(const StepReport& step) {
  seconds_ += step.seconds;
  const Status logged = outputs_.OnStep(step);
  if (!logged.ok()) Lose(Status::Failed(logged.message() + " (the training goes on)"));
  const double mean = seconds_ / static_cast<double>(++steps_);
  if (steps_ == 1 || step.step % arguments_.train.log_every == 0 || step.step == step.steps ||
      step.val_loss)
    Print(ToLine(step, mean));
}

void Run::Print(const std::string& text) { Lose(outputs_.Print(text)); }

// A training outlives its reports: one that cannot be written is said once, where there is still
// somebody to read it, and makes the exit status 1.
void Run::Lose(const Status& status) {
  {
    std::lock_guard<std::mutex> lock(losing_);
    if (status.ok() || !lost_.ok()) return;
    lost_ = Status::Failed(status.message());
  }
  PrintError(status);
}

// Writes what comes after the last step; returns what the comparison finds.
Status Run::Finish(const TrainReport& report) {
  const Status written = outputs_.Finish(*program_, report);
  if (report.status.ok()) {
    if (report.last_step == report.planned_steps) Lose(written);
    Print(SummaryText(report) + SampleText(report));
  }
  Status status;
  if (options_.compare && report.inputs != nullptr && !options_.StopsNow()) {
    const Status compared = CompareSteps(report);
    if (report.status.ok() && report.last_step == report.planned_steps) {
      status = compared;
    } else if (!compared.ok()) {  // explains why the run did not finish
      Print(compared.message() + "\n");
    }
  }
  return status;
}

Status Run::CompareSteps(const TrainReport& report) {
  Comparison comparison;
  PP_RETURN_IF_ERROR(Compare(*program_, options_, report, &comparison));
  Print(ToText(comparison));
  return {};
}

}  // namespace pp
