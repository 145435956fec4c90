// piperun: from the command line to a run (runtime/main/run.h) and an exit status.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/host_memory.h"
#include "runtime/device/cuda/gemm_table.h"
#include "runtime/main/backend.h"
#include "runtime/main/experiments.h"
#include "runtime/main/launch.h"
#include "runtime/main/options.h"
#include "runtime/main/print.h"
#include "runtime/main/reserve.h"
#include "runtime/main/run.h"
#include "runtime/main/stop_signals.h"
#include "runtime/run/deadline.h"
#include "schema/base/disk.h"
#include "schema/base/nearest.h"
#include "schema/base/status.h"
#include "schema/cli/words.h"

namespace pp {
namespace {

// How long the process may take to end after the run: connections to other hosts are closed. After
// a good run it also waits for ranks that take longer (--stall-timeout).
constexpr double kLeaveSeconds = 10;
// How long a launcher takes to end the other ranks when one has died.
constexpr std::chrono::milliseconds kLauncherTime{500};

struct CommandLine {
  Arguments arguments;
  std::shared_ptr<const GemmTable> gemms;  // of --gemms; null: none
  CudaExperiments experiments;
  std::vector<std::string> notes;
};
constexpr Renamed kRenamed[] = {{"--schedule", "--lr-schedule"}};

// Throws CLI::ParseError for --help.
Status Parse(CLI::App& app, std::vector<std::string> words, CommandLine* line) {
  line->notes = UseNewNames(kRenamed, &words);
  PP_RETURN_IF_ERROR(CheckWords(app, "piperun", words));
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) throw;
    return Status::Invalid(fmt::format("{} (piperun --help)", Shown(error.what())));
  }
  PP_RETURN_IF_ERROR(FinishOptions(&line->arguments));
  const Result<CudaExperiments> experiments = ParseExperiments(line->arguments);
  PP_RETURN_IF_ERROR(experiments.status());
  line->experiments = *experiments;
  if (line->arguments.train.gemms.empty()) return {};
  Result<GemmTable> table = GemmTable::Open(line->arguments.train.gemms);
  PP_RETURN_IF_ERROR(table.status().In("--gemms"));
  line->gemms = std::make_shared<GemmTable>(std::move(*table));
  return {};
}

int PrintHelp(const CLI::App& app, const CLI::ParseError& help) {
  const int code = app.exit(help);
  const Status written = PrintOut("");
  if (written.ok()) return code;
  PrintError(written);
  return static_cast<int>(written.code());
}

int Tune(const CommandLine& line, const Launch& launch, Status status) {
  if (status.ok() && launch.ranks > 1)
    status = Status::Invalid(
        fmt::format("--tune-gemms: under mpiexec -n {} (one piperun, on one GPU)", launch.ranks));
  if (status.ok()) {
    const Result<std::string> tuned = TuneGemms(line.arguments, line.experiments);
    status = tuned.ok() ? PrintOut(*tuned) : tuned.status();
  }
  if (!status.ok() && launch.rank == 0) PrintError(status);
  return static_cast<int>(status.code());
}

// `wrong`: an error that this rank already has, which all ranks are told.
int RunRank(CommandLine line, const Launch& launch, Status wrong) {
  const TransportRow& transport = TransportOf(line.arguments.train.transport_name);
  SpareDescriptors spares;
  Backend backend;
  if (wrong.ok()) {
    Result<Backend> opened =
        OpenBackend({.backend = line.arguments.train.backend,
                     .nccl = transport.nccl,
                     .gemms = line.gemms,
                     .stochastic_rounding = line.arguments.train.weight_rounding == "stochastic",
                     .experiments = line.experiments},
                    launch);
    wrong = opened.status();
    if (opened.ok()) backend = std::move(*opened);
  }
  const bool first = launch.rank == 0;
  std::atomic<int> code = static_cast<int>(Code::kFailed);
  Deadline deadline([&code] { std::_Exit(code.load()); });
  // If a rank has not joined yet, mpiexec ends all ranks when a signal kills it, but not when it
  // exits by itself.
  if (!launch.mpi) CatchStopSignals(first);
  Joined joined = JoinRun(launch, transport, wrong, line.arguments.train.stall_timeout);
  if (!joined.status.ok()) {
    if (first || !joined.connected) PrintError(joined.status);
    code = static_cast<int>(joined.status.code());
    if (joined.connected) std::_Exit(code);  // see JoinMpi
    return code;
  }
  if (launch.mpi) CatchStopSignals(first);
  const double patience = line.arguments.train.stall_timeout;
  Status status;
  bool speaks = false;
  {
    Run run(line.arguments, std::move(backend), line.gemms, &spares);
    status = run.Main(joined.transport.get());
    speaks = run.Speaks(status);
    code = static_cast<int>(status.code());
    deadline.Set(status.ok() ? std::max(kLeaveSeconds, patience) : kLeaveSeconds);
  }
  // If rank 0 has died, mpiexec may be about to end this one, too, and to report it.
  if (speaks && !first) std::this_thread::sleep_for(kLauncherTime);
  if (!status.ok() && speaks) PrintError(status);
  if (!joined.transport) return code;
  // Skips what MPI would do at an ordinary exit.
  joined.transport.reset();
  std::_Exit(code);
}

int Main(int argc, char** argv) {
  KeepFreedMemory();
  KeepStandardDescriptors();
  AllowManyFiles();
  // A write to a closed pipe, or beyond a file-size limit, is an error like a full disk, no signal.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("Trains a model by executing a compiled schedule.", "piperun");
  CommandLine line;
  DescribeOptions(app, line.arguments);
  Status status;
  try {
    status = Parse(app, {argv + 1, argv + argc}, &line);
  } catch (const CLI::ParseError& help) {
    return PrintHelp(app, help);
  }
  const Result<Launch> launch = ReadLaunch(TransportOf(line.arguments.train.transport_name));
  if (!launch.ok()) {
    PrintError(status.ok() ? launch.status() : status);
    return static_cast<int>(Code::kInvalid);
  }
  if (launch->rank == 0)
    for (const std::string& note : line.notes) fmt::print(stderr, "piperun: {}\n", note);
  if (!line.arguments.train.tune_gemms.empty()) return Tune(line, *launch, status);
  return RunRank(std::move(line), *launch, status);
}

}  // namespace
}  // namespace pp

int main(int argc, char** argv) {
  try {
    return pp::Main(argc, argv);
  } catch (const std::bad_alloc&) {
    pp::PrintError(pp::Status::Failed("out of memory" + pp::LimitText()));
  } catch (const std::system_error& error) {
    pp::PrintError(pp::Status::Failed(error.what() + pp::LimitText()));
  }
  return static_cast<int>(pp::Code::kFailed);
}
