// piperun: from the command line to a run and its files. What a run does is in run/train.h.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <system_error>

#include "runtime/comm/agree.h"
#include "runtime/comm/host_memory.h"
#include "runtime/compare/comparison.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/files/checkpoint.h"
#include "runtime/files/model_folder.h"
#include "runtime/files/output_file.h"
#include "runtime/main/backend.h"
#include "runtime/main/launch.h"
#include "runtime/main/options.h"
#include "runtime/main/stop_signals.h"
#include "runtime/model/products.h"
#include "runtime/run/deadline.h"
#include "runtime/run/export.h"
#include "runtime/run/run_text.h"
#include "runtime/run/train.h"
#include "schema/disk.h"
#include "schema/file.h"
#include "schema/nccl/prove.h"
#include "schema/timeline.h"
#include "schema/verify.h"

namespace pp {
namespace {

// How long the end of a run may take, which is over: connections to other hosts are closed.
constexpr double kLeaveSeconds = 10;

// The checksum that ends a plan file.
uint64_t PlanChecksum(const std::string& path) {
  uint64_t checksum = 0;
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<int>(sizeof checksum), std::ios::end);
  file.read(reinterpret_cast<char*>(&checksum), sizeof checksum);
  return checksum;
}

// Not by std::cerr, which waits for std::cout, which may wait for its reader. Where it cannot be
// written, the exit status says it alone.
void PrintError(const Status& status) {
  std::fputs(fmt::format("piperun: error: {}\n", OneLine(status.message())).c_str(), stderr);
}

Status PrintOut(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? Status() : Status::Failed("standard output: cannot be written");
}

// One run: what Main has made of the command line, and the files that it writes.
class Run {
 public:
  // `gemms` may be null.
  Run(const Arguments& a, TrainOptions options, Backend backend,
      std::shared_ptr<const GemmTable> gemms)
      : arguments_(a),
        options_(std::move(options)),
        backend_(std::move(backend)),
        gemms_(std::move(gemms)) {
    options_.make_device = backend_.make_device;
  }

  // Whether this rank is the one that says what went wrong, and has not done so.
  bool Speaks() const { return First() && !spoken_; }

  Status Main(Transport* transport) {
    options_.transport = transport;
    PP_RETURN_IF_ERROR(Prepare());
    options_.on_begin = [this] { return Begin(); };
    options_.on_note = [](const std::string& note) { std::cout << note << std::endl; };
    options_.on_step = [this](const StepReport& step) { return OnStep(step); };
    options_.on_failure = [this](const Status& status) {
      spoken_ = true;
      PrintError(status);
    };
    options_.on_stuck = [] { std::_Exit(static_cast<int>(Code::kFailed)); };
    TrainReport report = Train(*program_, options_);
    const auto end = [&] {
      Status status = report.status;
      if (status.ok() && report.last_step < report.planned_steps)
        status = Status::Failed(fmt::format("stopped after step {}{}", report.last_step,
                                            options_.exports ? " (nothing is exported)" : ""));
      const auto drawn = static_cast<int64_t>(report.sample.size()) - report.prompt;
      if (status.ok() && First() && drawn < options_.sample)
        status = Status::Failed(fmt::format("stopped after token {} of the sample", drawn));
      const Status written = First() ? Finish(report) : Status();
      return Readiness{.status = status.ok() ? written : status};
    };
    // mpiexec's exit status is sure only when that of all ranks is the same.
    return report.orphaned ? end().status : Together(end);
  }

 private:
  bool First() const { return options_.transport == nullptr || options_.transport->rank() == 0; }

  // The status of the first rank that has an error, on all ranks. `work` says what this one brings,
  // on a thread of its own: however long it takes, the others hear that this rank lives.
  Status Together(const std::function<Readiness()>& work) {
    if (options_.transport == nullptr) return work().status;
    std::future<Readiness> future = std::async(std::launch::async, work);
    Status mine;
    const Status agreed =
        Agree(*options_.transport, options_.stall_timeout, [&]() -> std::optional<Readiness> {
          if (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
            return std::nullopt;
          Readiness ready = future.get();
          mine = ready.status;
          return ready;
        });
    return mine.ok() ? agreed : mine;
  }

  Status Prepare() {
    return Together([this] {
      Readiness mine{.status = Read(), .items = DigestOptions(options_), .gpu = backend_.gpu};
      if (!mine.status.ok()) return mine;
      const std::hash<std::string> digest;
      mine.items.push_back({"PLAN", PlanChecksum(arguments_.plan)});
      mine.items.push_back({"--backend", digest(arguments_.backend)});
      mine.items.push_back({"--transport", digest(arguments_.transport)});
      mine.items.push_back({"--gemms", gemms_ != nullptr ? digest(gemms_->Print()) : 0});
      mine.items.push_back({"--weight-rounding", digest(arguments_.weight_rounding)});
      const Topology topology = TopologyOf(*program_);
      const bool on_host = arguments_.backend == "cpu";
      for (int rank = 0; on_host && First() && rank < topology.ranks(); ++rank)
        mine.bytes.push_back(program_->lists[topology.PlaceOf(rank).device].arena_bytes +
                             (options_.threads - 1) * KernelBytes(*program_->job));
      if (on_host && options_.transport == nullptr)
        mine.status =
            CheckMemory(std::vector<HostMemory>(topology.ranks(), ThisHost()), mine.bytes);
      return mine;
    });
  }

  Status Read() {
    Transport* transport = options_.transport;
    // Each rank reads its own list; the first one reads all and proves the whole plan again,
    // which somebody else may have made. What messages share is a matter of all lists.
    const bool nccl = arguments_.transport == "nccl";
    auto program =
        First() || nccl ? Load(arguments_.plan) : LoadRank(arguments_.plan, transport->rank());
    PP_RETURN_IF_ERROR(program.status());
    PP_RETURN_IF_ERROR(
        CheckRunnable(*program, arguments_.plan, transport ? transport->ranks() : 0));
    program_ = std::move(*program);
    if (!program_->clip && options_.optimizer.grad_clip > 0)
      return Status::Invalid(
          fmt::format("--grad-clip: {} ({} takes no gradient norm: --grad-clip 0)",
                      arguments_.grad_clip, arguments_.plan));
    for (const auto& [option, text] :
         {std::pair{"--loss-scale", &arguments_.loss_scale},
          std::pair{"--loss-scale-every", &arguments_.loss_scale_every}})
      if (!text->empty() && !InfoOf(program_->job->dtype).scales_loss)
        return Status::Invalid(
            fmt::format("{}: {} ({} has activations of {}: only fp16's loss is "
                        "scaled)",
                        option, *text, arguments_.plan, NameOf(program_->job->dtype)));
    if (arguments_.weight_rounding == "stochastic" && program_->job->dtype != Dtype::kBf16)
      return Status::Invalid(
          fmt::format("--weight-rounding: stochastic ({} has activations of {}: a bf16 plan's "
                      "weights alone are rounded so)",
                      arguments_.plan, NameOf(program_->job->dtype)));
    if (arguments_.backend == "cuda")
      PP_RETURN_IF_ERROR(CheckForCuda(*program_->job).In(arguments_.plan));
    if (First() || nccl) {
      std::vector<WaitsFor> waits_for;
      PP_RETURN_IF_ERROR(Verify(*program_, Depth::kPlan, &waits_for).In(arguments_.plan));
      if (nccl) PP_RETURN_IF_ERROR(ProveForNccl(waits_for).In(arguments_.plan));
    }
    if (!First()) return {};
    PP_RETURN_IF_ERROR(Open("--log", arguments_.log, &log_));
    PP_RETURN_IF_ERROR(Open("--trace", arguments_.trace, &trace_));
    std::error_code error;
    if (!arguments_.export_to.empty() && !arguments_.save.empty() &&
        std::filesystem::weakly_canonical(arguments_.export_to, error) ==
            std::filesystem::weakly_canonical(arguments_.save, error))
      return Status::Invalid(fmt::format("--export: {} is the folder of --save (another folder)",
                                         arguments_.export_to));
    if (!arguments_.save.empty()) PP_RETURN_IF_ERROR(OpenSave());
    return arguments_.export_to.empty() ? Status() : OpenExport().In("--export");
  }

  Status ProveForNccl(const std::vector<WaitsFor>& waits_for) {
    // The proof does not know of tensor parallel peers, who have a communicator, too.
    const int peers = TopologyOf(*program_).tp > 1 ? 1 : 0;
    const auto needs = nccl::Prove(*program_, waits_for, {.kernels = backend_.kernels - peers});
    PP_RETURN_IF_ERROR(needs.status());
    options_.nccl = needs->sharings;
    return {};
  }

  // The file keeps what it has until Begin.
  Status Open(const char* option, const std::string& path, std::optional<OutputFile>* file) {
    if (path.empty()) return {};
    if (log_ && log_->Is(path))
      return Status::Invalid(fmt::format("{}: {} is the log, too (another file)", option, path));
    Result<OutputFile> opened = OutputFile::Open(path);
    PP_RETURN_IF_ERROR(opened.status());
    for (const std::string& input : InputPaths(arguments_))
      if (opened->Is(input))
        return Status::Invalid(
            fmt::format("{}: {} is an input of this run (another file)", option, path));
    file->emplace(std::move(*opened));
    return {};
  }

  Status OpenSave() {
    const bool saved = !SavedSteps(options_.save).empty();
    if (saved && !options_.resume)
      return Status::Invalid(fmt::format(
          "--save: {}: has checkpoints already (--resume, or another folder)", options_.save));
    if (!saved && options_.resume)
      return Status::Invalid(
          fmt::format("--resume: {}: has no checkpoint (one that --save wrote)", options_.save));
    Result<SaveFolder> folder = SaveFolder::Open(options_.save);
    PP_RETURN_IF_ERROR(folder.status().In("--save"));
    save_.emplace(std::move(*folder));
    options_.save_to = &*save_;
    return {};
  }

  // Room for the model is taken now, not when it is trained.
  Status OpenExport() {
    Result<ModelFolder> folder = ModelFolder::Open(arguments_.export_to);
    PP_RETURN_IF_ERROR(folder.status());
    export_.emplace(std::move(*folder));
    options_.export_to = &*export_;
    return BeginExport(*program_->job, &*export_);
  }

  // All ranks are ready.
  Status Begin() {
    begun_ = true;
    if (gemms_ != nullptr && First()) {
      const std::vector<kernels::MatmulShape> products = AllProducts(*program_->job);
      const int lacks = gemms_->Lacks(products);
      if (lacks > 0)
        options_.on_note(fmt::format(
            "{} has no algorithm for {} of {} products, which cuBLASLt chooses (piperun "
            "--tune-gemms)",
            arguments_.gemms, lacks, products.size()));
    }
    options_.stop_requests = CountStopRequests();
    if (log_) PP_RETURN_IF_ERROR(log_->Begin());
    return trace_ ? trace_->Begin() : Status();
  }

  Status OnStep(const StepReport& step) {
    seconds_ += step.seconds;
    if (log_) PP_RETURN_IF_ERROR(log_->Write(ToJson(step)));
    return PrintOut(ToLine(step, seconds_ / static_cast<double>(++steps_)));
  }

  // What is written after the last step; the first error of all.
  Status Finish(const TrainReport& report) {
    Status status;
    const auto keep = [&](const Status& one) {
      if (status.ok()) status = one;
    };
    if (trace_)
      keep(WriteChromeTrace(*program_, report.events,
                            [this](std::string_view piece) { return trace_->Write(piece); }));
    if (trace_) keep(trace_->Close());
    if (log_) keep(log_->Close());
    if (save_ && begun_)
      keep(PrintOut(
          report.saved_step == 0
              ? fmt::format("nothing is saved in {}\n", options_.save)
              : fmt::format("saved in {}\n", StepFolder(options_.save, report.saved_step))));
    if (status.ok() && report.status.ok()) keep(PrintOut(SummaryText(report) + SampleText(report)));
    const bool hurries = options_.stop_requests != nullptr && options_.stop_requests->load() > 1;
    if (options_.compare && report.inputs != nullptr && !hurries) {
      const Status compared = CompareSteps(report);
      if (report.status.ok() && report.last_step == report.planned_steps) {
        keep(compared);
      } else if (!compared.ok()) {  // the error is why the run did not come to its end
        keep(PrintOut(compared.message() + "\n"));
      }
    }
    return status;
  }

  Status CompareSteps(const TrainReport& report) {
    Comparison comparison;
    PP_RETURN_IF_ERROR(Compare(*program_, options_, report, &comparison));
    return PrintOut(ToText(comparison));
  }

  const Arguments arguments_;
  TrainOptions options_;
  const Backend backend_;
  const std::shared_ptr<const GemmTable> gemms_;
  std::optional<Program> program_;
  std::optional<OutputFile> log_, trace_;
  std::optional<ModelFolder> export_;
  std::optional<SaveFolder> save_;
  int64_t steps_ = 0;  // reported
  double seconds_ = 0;
  bool begun_ = false, spoken_ = false;
};

int Main(int argc, char** argv) {
  KeepStandardDescriptors();
  // What cannot be written is an error like a full disk: a reader that went away, a file that
  // grows beyond a limit.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Trains a model by executing a compiled schedule.", "piperun");
  Arguments arguments;
  TrainOptions options;
  std::shared_ptr<const GemmTable> gemms;
  DescribeOptions(app, arguments);
  auto parse = [&]() -> Status {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      if (error.get_exit_code() == 0) throw;
      return Status::Invalid(fmt::format("{} (piperun --help)", error.what()));
    }
    PP_RETURN_IF_ERROR(ParseOptions(arguments, &options));
    if (!arguments.gemms.empty()) {
      Result<GemmTable> table = GemmTable::Open(arguments.gemms);
      PP_RETURN_IF_ERROR(table.status().In("--gemms"));
      gemms = std::make_shared<GemmTable>(std::move(*table));
    }
    return {};
  };
  Status status;
  try {
    status = parse();
  } catch (const CLI::ParseError& help) {
    const int code = app.exit(help);
    const Status written = PrintOut("");
    if (written.ok()) return code;
    PrintError(written);
    return static_cast<int>(written.code());
  }
  const Result<Launch> launch = ReadLaunch(arguments.transport);
  if (!launch.ok()) {
    PrintError(status.ok() ? launch.status() : status);
    return static_cast<int>(Code::kInvalid);
  }
  Backend backend;
  if (status.ok() && arguments.tune_gemms.empty()) {
    Result<Backend> opened =
        OpenBackend({.backend = arguments.backend,
                     .transport = arguments.transport,
                     .gemms = gemms,
                     .stochastic_rounding = arguments.weight_rounding == "stochastic"},
                    *launch);
    status = opened.status();
    if (opened.ok()) backend = std::move(*opened);
  }
  const bool first = launch->rank == 0;
  if (!arguments.tune_gemms.empty()) {
    if (status.ok() && launch->ranks > 1)
      status = Status::Invalid(fmt::format(
          "--tune-gemms: under mpiexec -n {} (one piperun, on one GPU)", launch->ranks));
    if (status.ok()) {
      const Result<std::string> tuned = TuneGemms(arguments);
      status = tuned.ok() ? PrintOut(*tuned) : tuned.status();
    }
    if (!status.ok() && first) PrintError(status);
    return static_cast<int>(status.code());
  }
  // mpiexec ends all ranks when one of them that has not joined yet is ended by a signal, not when
  // it exits.
  if (!launch->mpi) CatchStopSignals(first);
  Joined joined = JoinRun(*launch, arguments.transport, status, options.stall_timeout);
  if (!joined.status.ok()) {
    if (first || !joined.met) PrintError(joined.status);
    const int code = static_cast<int>(joined.status.code());
    if (joined.met) std::_Exit(code);  // see JoinMpi
    return code;
  }
  if (launch->mpi) CatchStopSignals(first);
  bool speaks = false;
  {
    Run run(arguments, std::move(options), std::move(backend), gemms);
    status = run.Main(joined.transport.get());
    speaks = run.Speaks();
  }
  if (!status.ok() && speaks) PrintError(status);
  const int code = static_cast<int>(status.code());
  const Deadline deadline(kLeaveSeconds, [code] { std::_Exit(code); });
  if (!joined.transport) return code;
  // Without what MPI would still do when the process ends.
  joined.transport.reset();
  std::_Exit(code);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  try {
    return pp::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    pp::PrintError(pp::Status::Failed("out of memory"));
  } catch (const std::system_error& error) {
    pp::PrintError(pp::Status::Failed(error.what()));
  }
  return static_cast<int>(pp::Code::kFailed);
}
