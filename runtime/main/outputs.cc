#include "runtime/main/outputs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/main/cores.h"
#include "runtime/main/print.h"
#include "runtime/run/run_text.h"
#include "schema/base/disk.h"
#include "schema/format/profile.h"
#include "schema/format/timeline.h"
#include "schema/topology.h"

namespace pp {
namespace {

// What may wait for a reader: an hour of lines, and all of a day's log.
constexpr size_t kLineBytes = 256 << 10, kLogBytes = 4 << 20;

// Whether the file is `input`, or is somewhere in that folder.
bool IsIn(const OutputFile& file, const std::string& input) {
  std::error_code error;
  if (file.Is(input)) return true;
  using Files = std::filesystem::recursive_directory_iterator;
  for (Files at(input, error), end; !error && at != end; at.increment(error))
    if (file.Is(at->path())) return true;
  return false;
}

// The processor, as Linux names it.
std::string HostName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (const size_t at = line.find(": "); line.starts_with("model name") && at != line.npos)
      return line.substr(at + 2);
  return {};
}

// The bytes of a log that are about the training's first steps. What was logged of later ones,
// which happen again, does not count, nor a line that was not finished.
Result<int64_t> BytesUpTo(const std::string& path, int64_t steps) {
  std::ifstream file(path, std::ios::binary);
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    int64_t step = 0;
    if (std::sscanf(line.c_str(), "{\"step\":%ld", &step) == 1 && step > steps) break;
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  // It goes on behind what was read: an error must not empty it.
  if (!file.is_open() || file.bad())
    return Status::Failed(fmt::format("--log: {}: cannot be read", path));
  return bytes;
}

}  // namespace

Status Outputs::Open(const Program& program, TrainOptions* options) {
  const std::string* files[] = {&arguments_.train.log, &arguments_.train.trace,
                                &arguments_.train.profile};
  options_ = options;
  lines_on_error_ = std::any_of(std::begin(files), std::end(files),
                                [](const std::string* file) { return *file == kStandardOutput; });
  lines_.emplace(lines_on_error_ ? "standard error" : "standard output",
                 lines_on_error_ ? STDERR_FILENO : STDOUT_FILENO, kLineBytes,
                 LineWriter::Gaps::kSaid);
  machine_.host = HostName();
  machine_.threads = options->threads;
  const Cores cores = CoresOf(options->transport ? 1 : TopologyOf(program).ranks());
  machine_.cores = cores.cores / cores.ranks;
  PP_RETURN_IF_ERROR(OpenFile("--log", arguments_.train.log, &log_));
  PP_RETURN_IF_ERROR(OpenFile("--trace", arguments_.train.trace, &trace_));
  PP_RETURN_IF_ERROR(OpenFile("--profile", arguments_.train.profile, &profile_));
  std::error_code error;
  const std::string exports = options->export_merged ? "--export-merged" : "--export";
  if (options->exports && !options->save.empty() &&
      std::filesystem::weakly_canonical(options->export_path, error) ==
          std::filesystem::weakly_canonical(options->save, error))
    return Status::Invalid(fmt::format("{}: {} is the folder of --save (another folder)", exports,
                                       options->export_path));
  if (!options->save.empty()) PP_RETURN_IF_ERROR(OpenSave(options));
  return options->exports ? OpenExport(options).In(exports) : Status();
}

Status Outputs::OpenFile(const char* option, const std::string& path,
                         std::optional<OutputFile>* file) {
  if (path.empty()) return {};
  const struct {
    const char* name;
    const std::string& path;
    const std::optional<OutputFile>& file;
  } others[] = {{"log", arguments_.train.log, log_}, {"trace", arguments_.train.trace, trace_}};
  for (const auto& [name, taken, other] : others)
    if (other && (other->Is(path) || (path == kStandardOutput && taken == path)))
      return Status::Invalid(
          fmt::format("{}: {} is the {}, too (another file)", option, path, name));
  Result<OutputFile> opened = OutputFile::Open(path);
  PP_RETURN_IF_ERROR(opened.status());
  for (const std::string& input : InputPaths(arguments_))
    if (IsIn(*opened, input))
      return Status::Invalid(
          fmt::format("{}: {} is an input of this run (another file)", option, path));
  file->emplace(std::move(*opened));
  return {};
}

Status Outputs::OpenSave(TrainOptions* options) {
  saves_ = options->save;
  std::error_code error;
  const std::filesystem::directory_iterator listed(saves_, error);
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    return Status::Invalid(fmt::format("--save: {}: cannot be read: {}", saves_, error.message()));
  const bool saved = !SavedSteps(saves_).empty();
  if (saved && !options->resume)
    return Status::Invalid(
        fmt::format("--save: {}: has checkpoints already (--resume, or another folder)", saves_));
  if (!saved && options->resume)
    return Status::Invalid(
        fmt::format("--resume: {}: has no checkpoint (one that --save wrote)", saves_));
  Result<SaveFolder> folder = SaveFolder::Open(saves_, options->keep);
  PP_RETURN_IF_ERROR(folder.status().In("--save"));
  options->save_to = &save_.emplace(std::move(*folder));
  return {};
}

Status Outputs::OpenExport(TrainOptions* options) {
  Result<ModelFolder> folder = ModelFolder::Open(options->export_path);
  PP_RETURN_IF_ERROR(folder.status());
  options->export_to = &export_.emplace(std::move(*folder));
  return export_->note().empty() ? Status() : Print(export_->note() + "\n");
}

Status Outputs::Print(const std::string& text) {
  const Status status = lines_->Add(text);
  return lines_on_error_ ? Status() : status;
}

Status Outputs::Begin(int64_t steps_before) {
  begun_ = true;
  if (log_) PP_RETURN_IF_ERROR(BeginLog(steps_before));
  if (trace_) PP_RETURN_IF_ERROR(trace_->Begin());
  return profile_ ? profile_->Begin() : Status();
}

Status Outputs::BeginLog(int64_t steps_before) {
  if (!log_->is_regular()) {
    log_lines_.emplace(log_->path(), log_->descriptor(), kLogBytes, LineWriter::Gaps::kFailed);
    return {};
  }
  if (steps_before == 0 || log_->path() == kStandardOutput) return log_->Begin();
  const Result<int64_t> bytes = BytesUpTo(log_->path(), steps_before);
  PP_RETURN_IF_ERROR(bytes.status());
  return log_->Begin(*bytes);
}

Status Outputs::OnStep(const StepReport& step) {
  if (!log_) return {};
  if (log_lines_) return log_lines_->Add(ToJson(step));
  const Status status = log_->Write(ToJson(step));
  if (!status.ok()) log_.reset();
  return status;
}

// A reader may be as slow as a rank, but who asks to stop does not wait for one that does not read.
bool Outputs::Waits(double silent) const {
  constexpr double kStopSeconds = 1;
  if (options_->Stops()) return silent < kStopSeconds;
  return options_->stall_timeout <= 0 || silent < options_->stall_timeout;
}

Status Outputs::Finish(const Program& program, const TrainReport& report) {
  if (!begun_) return {};
  Status status;
  const auto keep = [&](const Status& one) {
    if (status.ok()) status = one;
  };
  if (save_)
    keep(Print(report.saved_step == 0
                   ? fmt::format("nothing is saved in {}\n", saves_)
                   : fmt::format("saved in {}\n", StepFolder(saves_, report.saved_step))));
  if (save_ && report.best && options_->keep_best)
    keep(Print(fmt::format("best validation loss {:.9g}, saved in {}\n", report.best->loss,
                           StepFolder(saves_, report.best->step))));
  if (trace_)
    keep(WriteChromeTrace(program, report.events, [this](std::string_view piece) {
      return trace_->Write(piece, [this](double silent) { return Waits(silent); });
    }));
  if (trace_) keep(trace_->Close());
  if (profile_) keep(WriteProfile(program, report));
  if (log_ && !log_lines_) keep(log_->Close());
  return status;
}

Status Outputs::WriteProfile(const Program& program, const TrainReport& report) {
  std::vector<Profile> profiles;
  for (int shape = 0; shape < program.shapes(); ++shape) {
    Profile& profile = profiles.emplace_back(ProfileOf(program, report.events, shape));
    profile.threads = machine_.threads;
    profile.cores = machine_.cores;
    profile.host = machine_.host;
    profile.job.document_length = std::min(report.document_length, profile.job.sequence_length);
    if (profile.steps == 0) return Status::Failed("--profile: no step was measured");
  }
  PP_RETURN_IF_ERROR(
      profile_->Write(ToJson(profiles), [this](double silent) { return Waits(silent); }));
  return profile_->Close();
}

Status Outputs::Drain() {
  const auto waits = [this](double silent) { return Waits(silent); };
  const Status logged = log_lines_ ? log_lines_->Drain(waits) : Status();
  const Status printed = lines_ ? lines_->Drain(waits) : Status();
  return logged.ok() && !lines_on_error_ ? printed : logged;
}

}  // namespace pp
