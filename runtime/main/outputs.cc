#include "runtime/main/outputs.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "runtime/comm/topology.h"
#include "runtime/main/cores.h"
#include "runtime/main/print.h"
#include "runtime/run/export.h"
#include "runtime/run/run_text.h"
#include "schema/base/disk.h"
#include "schema/format/profile.h"
#include "schema/format/timeline.h"

namespace pp {
namespace {

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

// The part of a log that is about the training's first steps. What was logged of later ones, which
// happen again, does not count, nor a line that was not finished.
int64_t BytesUpTo(const std::string& path, int64_t steps) {
  std::error_code none;
  if (steps == 0 || !std::filesystem::is_regular_file(path, none)) return 0;
  std::ifstream file(path, std::ios::binary);
  int64_t bytes = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    int64_t step = 0;
    if (std::sscanf(line.c_str(), "{\"step\":%ld", &step) == 1 && step > steps) break;
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return bytes;
}

}  // namespace

Status Outputs::Open(const Program& program, TrainOptions* options) {
  threads_ = options->threads;
  ranks_ = options->transport ? 1 : TopologyOf(program).ranks();
  PP_RETURN_IF_ERROR(OpenFile("--log", arguments_.log, &log_));
  PP_RETURN_IF_ERROR(OpenFile("--trace", arguments_.trace, &trace_));
  PP_RETURN_IF_ERROR(OpenFile("--profile", arguments_.profile, &profile_));
  std::error_code error;
  if (options->exports && !options->save.empty() &&
      std::filesystem::weakly_canonical(options->export_path, error) ==
          std::filesystem::weakly_canonical(options->save, error))
    return Status::Invalid(
        fmt::format("--export: {} is the folder of --save (another folder)", options->export_path));
  if (!options->save.empty()) PP_RETURN_IF_ERROR(OpenSave(options));
  return options->exports ? OpenExport(program, options).In("--export") : Status();
}

Status Outputs::OpenFile(const char* option, const std::string& path,
                         std::optional<OutputFile>* file) {
  if (path.empty()) return {};
  const std::pair<const char*, const std::optional<OutputFile>*> others[] = {{"log", &log_},
                                                                             {"trace", &trace_}};
  for (const auto& [name, other] : others)
    if (*other && (*other)->Is(path))
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
  const bool saved = !SavedSteps(saves_).empty();
  if (saved && !options->resume)
    return Status::Invalid(
        fmt::format("--save: {}: has checkpoints already (--resume, or another folder)", saves_));
  if (!saved && options->resume)
    return Status::Invalid(
        fmt::format("--resume: {}: has no checkpoint (one that --save wrote)", saves_));
  Result<SaveFolder> folder = SaveFolder::Open(saves_);
  PP_RETURN_IF_ERROR(folder.status().In("--save"));
  options->save_to = &save_.emplace(std::move(*folder));
  return {};
}

// Reserves the disk space for the model now, not when it is trained.
Status Outputs::OpenExport(const Program& program, TrainOptions* options) {
  Result<ModelFolder> folder = ModelFolder::Open(options->export_path);
  PP_RETURN_IF_ERROR(folder.status());
  options->export_to = &export_.emplace(std::move(*folder));
  return BeginExport(*program.job, &*export_);
}

Status Outputs::Print(const std::string& text) const {
  for (const std::string& path : {arguments_.log, arguments_.trace, arguments_.profile}) {
    if (path != kStandardOutput) continue;
    std::fputs(text.c_str(), stderr);  // as errors are written: see print.cc
    return {};
  }
  return PrintOut(text);
}

Status Outputs::Begin(int64_t steps_before) {
  begun_ = true;
  if (log_) PP_RETURN_IF_ERROR(log_->Begin(BytesUpTo(log_->path(), steps_before)));
  if (trace_) PP_RETURN_IF_ERROR(trace_->Begin());
  return profile_ ? profile_->Begin() : Status();
}

Status Outputs::OnStep(const StepReport& step) {
  const Status status = log_ ? log_->Write(ToJson(step)) : Status();
  if (!status.ok()) log_.reset();
  return status;
}

Status Outputs::Finish(const Program& program, const TrainReport& report) {
  Status status;
  const auto keep = [&](const Status& one) {
    if (status.ok()) status = one;
  };
  if (trace_)
    keep(WriteChromeTrace(program, report.events,
                          [this](std::string_view piece) { return trace_->Write(piece); }));
  if (trace_) keep(trace_->Close());
  if (profile_) {
    Profile profile = ProfileOf(program, report.events);
    profile.threads = threads_;
    const Cores cores = CoresOf(ranks_);
    profile.cores = cores.cores / cores.ranks;
    profile.host = HostName();
    keep(profile.steps > 0 ? profile_->Write(ToJson(profile))
                           : Status::Failed("--profile: no step was measured"));
    keep(profile_->Close());
  }
  if (log_) keep(log_->Close());
  if (save_ && begun_)
    keep(Print(report.saved_step == 0
                   ? fmt::format("nothing is saved in {}\n", saves_)
                   : fmt::format("saved in {}\n", StepFolder(saves_, report.saved_step))));
  return status;
}

}  // namespace pp
