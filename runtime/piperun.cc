// piperun: the command line. What it does is in train.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>

#include "runtime/comm/mpi_plugin.h"
#include "runtime/files/output_file.h"
#include "runtime/run/step_log.h"
#include "runtime/run/train.h"
#include "schema/file.h"
#include "schema/timeline.h"
#include "schema/verify.h"

namespace pp {
namespace {

// What the user typed. Numbers stay text until they are checked, so that every wrong one
// gets the same kind of error.
struct Arguments {
  std::string plan, data, weights, log, trace, net;
  std::string steps, epochs, seed = "1", threads = "1", stall_timeout = "300";
  std::string backend = "cpu", transport = "auto", schedule = "constant";
  std::string lr = "3e-4", min_lr, weight_decay = "0.1", grad_clip = "1", warmup_steps = "0";
};

// What mpiexec told this process, if it started it.
struct Launch {
  int rank = 0;
  int ranks = 1;
  bool mpi = false;
};

template <typename Number>
bool Parses(const std::string& text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

Status ParseWhole(const char* option, const std::string& text, int64_t least, int64_t most,
                  int64_t* number) {
  if (Parses(text, number) && *number >= least && *number <= most) return {};
  return Status::Invalid(
      fmt::format("{}: '{}' (a whole number from {} to {})", option, text, least, most));
}

Status ParseReal(const char* option, const std::string& text, double* number) {
  if (Parses(text, number) && std::isfinite(*number) && *number >= 0) return {};
  return Status::Invalid(fmt::format("{}: '{}' (a number from 0)", option, text));
}

Status OneOf(const char* option, const std::string& text,
             std::initializer_list<const char*> known) {
  if (std::find(known.begin(), known.end(), text) != known.end()) return {};
  return Status::Invalid(fmt::format("{}: '{}' ({})", option, text, fmt::join(known, ", ")));
}

Status ParseOptions(const Arguments& a, TrainOptions* options) {
  int64_t seed = 0, threads = 0;
  OptimizerOptions& optimizer = options->optimizer;
  optimizer.steps = 100;
  if (!a.steps.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--steps", a.steps, 1, INT32_MAX, &optimizer.steps));
  if (!a.epochs.empty())
    PP_RETURN_IF_ERROR(ParseWhole("--epochs", a.epochs, 1, INT32_MAX, &options->epochs));
  if (!a.steps.empty() && !a.epochs.empty())
    return Status::Invalid(
        fmt::format("--epochs: {} with --steps {} (one of them)", a.epochs, a.steps));
  PP_RETURN_IF_ERROR(ParseWhole("--seed", a.seed, 0, INT64_MAX, &seed));
  PP_RETURN_IF_ERROR(ParseWhole("--threads", a.threads, 1, 1024, &threads));
  PP_RETURN_IF_ERROR(OneOf("--backend", a.backend, {"cpu", "cuda"}));
  if (a.backend == "cuda") return Status::Invalid("--backend: 'cuda' is not in this build (cpu)");
  PP_RETURN_IF_ERROR(OneOf("--transport", a.transport, {"auto", "threads", "shm", "mpi"}));
  if (!a.net.empty()) {
    const Result<Network> network = ParseNetwork(a.net);
    PP_RETURN_IF_ERROR(network.status());
    options->network = *network;
  }
  PP_RETURN_IF_ERROR(OneOf("--schedule", a.schedule, {"constant", "cosine"}));
  PP_RETURN_IF_ERROR(ParseReal("--lr", a.lr, &optimizer.learning_rate));
  optimizer.min_learning_rate = 0.1 * optimizer.learning_rate;
  if (!a.min_lr.empty())
    PP_RETURN_IF_ERROR(ParseReal("--min-lr", a.min_lr, &optimizer.min_learning_rate));
  PP_RETURN_IF_ERROR(ParseReal("--weight-decay", a.weight_decay, &optimizer.weight_decay));
  PP_RETURN_IF_ERROR(ParseReal("--grad-clip", a.grad_clip, &optimizer.grad_clip));
  PP_RETURN_IF_ERROR(
      ParseWhole("--warmup-steps", a.warmup_steps, 0, INT32_MAX, &optimizer.warmup_steps));
  PP_RETURN_IF_ERROR(ParseReal("--stall-timeout", a.stall_timeout, &options->stall_timeout));
  optimizer.cosine = a.schedule == "cosine";
  options->seed = static_cast<uint64_t>(seed);
  options->threads = static_cast<int>(threads);
  options->data = a.data;
  options->weights = a.weights;
  options->record = !a.trace.empty();
  // Neither the folder nor the files have to have the same names everywhere.
  options->fingerprint = std::hash<std::string>()(fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {}", a.steps, a.epochs, a.seed, a.schedule, a.lr, a.min_lr,
      a.weight_decay, a.grad_clip, a.warmup_steps, a.trace.empty(), a.weights.empty()));
  return {};
}

std::optional<int> EnvironmentNumber(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    int number = 0;
    const char* text = std::getenv(name);
    if (text != nullptr && Parses(std::string(text), &number)) return number;
  }
  return std::nullopt;
}

// MPICH's and Open MPI's launchers leave these.
Launch ReadLaunch() {
  const auto ranks = EnvironmentNumber({"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"});
  const auto rank = EnvironmentNumber({"PMI_RANK", "OMPI_COMM_WORLD_RANK"});
  return {rank.value_or(0), ranks.value_or(1), ranks.has_value()};
}

// Written by the signal handler, where little is allowed.
std::atomic<int> stop_requests{0};
std::atomic<int64_t> last_request{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

// One Ctrl-C may reach a rank twice, from the terminal and from mpiexec: another signal counts
// only when it is at least a second later. The third one ends the process, whatever it is at.
void OnSignal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (stop_requests.load() > 0 && now.tv_sec - last_request.load() < 2) return;
  last_request.store(now.tv_sec);
  if (++stop_requests < 3) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader of our output that went away is an error like a full disk.
  std::signal(SIGPIPE, SIG_IGN);
}

Result<std::unique_ptr<Transport>> JoinRun(const Arguments& a, const Launch& launch) {
  const bool threads = a.transport == "threads" || (a.transport == "auto" && !launch.mpi);
  if (threads && launch.ranks > 1)
    return Status::Invalid(
        fmt::format("--transport: 'threads' under mpiexec -n {} (shm or mpi, or start without "
                    "mpiexec)",
                    launch.ranks));
  if (a.transport == "shm" && !launch.mpi)
    return Status::Invalid(
        "--transport: 'shm' without mpiexec (mpiexec -n N piperun, or --transport threads)");
  if (threads) return std::unique_ptr<Transport>();
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return JoinMpi(error ? "." : program.parent_path().string(),
                 a.transport == "mpi" ? InsideHost::kMpi : InsideHost::kSharedMemory);
}

// OpenMP's threads spin at the end of a loop. Where another process has the core of one of
// them, all wait for it: 2 threads on 2 cores with a neighbour ran 25 times slower than
// sleeping ones. OpenMP reads its settings before main begins, so the program starts again.
void StartWithSleepingThreads(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // where this fails, they spin
}

// The checksum that ends a plan file.
uint64_t PlanChecksum(const std::string& path) {
  uint64_t checksum = 0;
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<int>(sizeof checksum), std::ios::end);
  file.read(reinterpret_cast<char*>(&checksum), sizeof checksum);
  return checksum;
}

// Not by std::cerr, which waits for std::cout, which may wait for its reader.
void PrintError(const Status& status) {
  fmt::print(stderr, "piperun: error: {}\n", status.message());
}

Status PrintOut(const std::string& text) {
  std::cout << text << std::flush;
  return std::cout ? Status() : Status::Failed("standard output: cannot be written");
}

// One run: what Main has made of the command line, and the files that it writes.
class Run {
 public:
  Run(const Arguments& a, TrainOptions options) : arguments_(a), options_(std::move(options)) {}

  // Whether this rank is the one that says what went wrong, and has not done so.
  bool Speaks() const { return First() && !spoken_; }

  Status Main(Transport* transport) {
    options_.transport = transport;
    PP_RETURN_IF_ERROR(Together(Prepare(), options_.fingerprint));
    CatchSignals();
    options_.stop_requests = &stop_requests;
    options_.on_step = [this](const StepReport& step) { return OnStep(step); };
    options_.on_failure = [this](const Status& status) {
      spoken_ = true;
      PrintError(status);
    };
    options_.on_stuck = [] { std::_Exit(static_cast<int>(Code::kFailed)); };
    TrainReport report = Train(*program_, options_);
    Status status = report.status;
    if (status.ok() && report.last_step < report.planned_steps)
      status = Status::Failed(fmt::format("stopped after step {}", report.last_step));
    if (First() && trace_) {
      const Status written =
          WriteChromeTrace(*program_, report.events,
                           [this](std::string_view piece) { return trace_->Write(piece); });
      if (status.ok()) status = written;
    }
    if (First() && status.ok()) status = PrintOut(Summary(report));
    // mpiexec's exit status is sure only when that of all ranks is the same.
    return report.orphaned ? status : Together(status, 0);
  }

 private:
  bool First() const { return options_.transport == nullptr || options_.transport->rank() == 0; }

  // The status of the first rank that has an error, on all ranks.
  Status Together(const Status& status, uint64_t fingerprint) {
    if (options_.transport == nullptr) return status;
    const Status agreed = Agree(*options_.transport, status, fingerprint);
    return status.ok() ? agreed : status;
  }

  Status Prepare() {
    Transport* transport = options_.transport;
    // Each rank reads its own list; the first one reads all and proves the whole plan again,
    // which somebody else may have made.
    auto program = First() ? Load(arguments_.plan) : LoadRank(arguments_.plan, transport->rank());
    PP_RETURN_IF_ERROR(program.status());
    PP_RETURN_IF_ERROR(
        CheckRunnable(*program, arguments_.plan, transport ? transport->ranks() : 0));
    program_ = std::move(*program);
    if (!program_->clip && options_.optimizer.grad_clip > 0)
      return Status::Invalid(
          fmt::format("--grad-clip: {} ({} takes no gradient norm: --grad-clip 0)",
                      arguments_.grad_clip, arguments_.plan));
    options_.fingerprint ^= PlanChecksum(arguments_.plan);
    if (!First()) return {};
    PP_RETURN_IF_ERROR(Verify(*program_, Depth::kPlan).In(arguments_.plan));
    PP_RETURN_IF_ERROR(Open(arguments_.log, &log_));
    return Open(arguments_.trace, &trace_);
  }

  static Status Open(const std::string& path, std::optional<OutputFile>* file) {
    if (path.empty()) return {};
    Result<OutputFile> opened = OutputFile::Open(path);
    PP_RETURN_IF_ERROR(opened.status());
    file->emplace(std::move(*opened));
    return {};
  }

  Status OnStep(const StepReport& step) {
    seconds_ += step.seconds;
    if (log_) PP_RETURN_IF_ERROR(log_->Write(ToJson(step)));
    return PrintOut(ToLine(step, seconds_ / static_cast<double>(step.step)));
  }

  // Where the time of the compute threads went.
  static std::string Summary(const TrainReport& report) {
    TimeSpent all;
    for (const TimeSpent& rank : report.time) {
      all.total += rank.total;
      all.kernels += rank.kernels;
      all.waiting += rank.waiting;
      all.own += rank.own;
      all.instructions += rank.instructions;
      for (size_t k = 0; k < kCommNames.size(); ++k) {
        all.communication.kinds[k].total += rank.communication.kinds[k].total;
        all.communication.kinds[k].exposed += rank.communication.kinds[k].exposed;
      }
    }
    std::string text = fmt::format(
        "kernels {:.1f} %  waiting {:.1f} %  runtime {:.2f} us an instruction ({:.2f} %)\n",
        100 * all.kernels / all.total, 100 * all.waiting / all.total, 1e6 * all.OwnPerInstruction(),
        100 * all.own / all.total);
    // From the start of an instruction to its end; hidden: nobody stood waiting for it.
    for (size_t k = 0; k < kCommNames.size(); ++k) {
      const CommTime& time = all.communication.kinds[k];
      if (time.total > 0)
        text += fmt::format("{:<9} {:.3f} s a rank, {:.1f} % hidden behind compute\n",
                            kCommNames[k], time.total / static_cast<double>(report.time.size()),
                            100 * (1 - time.exposed / time.total));
    }
    return text;
  }

  const Arguments arguments_;
  TrainOptions options_;
  std::optional<Program> program_;
  std::optional<OutputFile> log_, trace_;
  double seconds_ = 0;
  bool spoken_ = false;
};

void Describe(CLI::App& app, Arguments& a) {
  auto add = [&](const char* name, std::string& value, const char* text) {
    return app.add_option(name, value, text);
  };
  add("PLAN", a.plan, "what pipec compiled")->required()->type_name("");
  add("--data", a.data, "text, llm.c tokens or a Megatron dataset")->required();
  add("--steps", a.steps, "optimizer steps (100)");
  add("--epochs", a.epochs, "in place of --steps: so often through the data");
  add("--seed", a.seed, "of new weights and dropout (1)");
  add("--threads", a.threads, "compute threads a rank (1)");
  add("--backend", a.backend, "cpu");
  add("--transport", a.transport,
      "auto (shm under mpiexec, else threads), threads, shm (mpi between hosts) or mpi");
  add("--net", a.net, "make messages slow: latency=50us,bandwidth=1GB/s, or one of the two");
  add("--lr", a.lr, "learning rate (3e-4)");
  add("--min-lr", a.min_lr, "where the cosine ends (a tenth of --lr)");
  add("--weight-decay", a.weight_decay, "of matrices (0.1)");
  add("--grad-clip", a.grad_clip, "largest norm of the gradient (1; 0: any)");
  add("--warmup-steps", a.warmup_steps, "steps of linear warm-up (0)");
  add("--schedule", a.schedule, "constant (default) or cosine, after the warm-up");
  add("--weights", a.weights, "a folder with model.safetensors, to start from");
  add("--log", a.log, "write a JSON object a step");
  add("--trace", a.trace, "write a Chrome trace of the first million instructions a rank");
  add("--stall-timeout", a.stall_timeout,
      "give up when nothing goes on for so many seconds (300; 0: never)");
}

int Main(int argc, char** argv) {
  const Launch launch = ReadLaunch();
  const bool first = launch.rank == 0;
  CLI::App app("Trains a model by executing a compiled schedule.", "piperun");
  Arguments arguments;
  Describe(app, arguments);
  auto end = [](bool speaks, const Status& status) {
    if (!status.ok() && speaks) PrintError(status);
    return static_cast<int>(status.code());
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return first ? app.exit(error) : 0;
    return end(first, Status::Invalid(fmt::format("{} (piperun --help)", error.what())));
  }
  TrainOptions options;
  const Status parsed = ParseOptions(arguments, &options);
  if (!parsed.ok()) return end(first, parsed);
  if (options.threads > 1) StartWithSleepingThreads(argv);
  auto transport = JoinRun(arguments, launch);
  if (!transport.ok()) return end(first, transport.status());
  Run run(arguments, std::move(options));
  const Status status = run.Main(transport->get());
  return end(run.Speaks(), status);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) { return pp::Main(argc, argv); }
