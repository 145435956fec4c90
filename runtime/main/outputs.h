// What a run writes: lines for people, log, trace, profile, checkpoints and the exported model.
// Training never waits for a reader of lines or of the log.
#pragma once

#include <optional>
#include <string>

#include "runtime/files/checkpoint.h"
#include "runtime/files/line_writer.h"
#include "runtime/files/model_folder.h"
#include "runtime/files/output_file.h"
#include "runtime/main/options.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/format/profile.h"
#include "schema/program.h"

namespace pp {

// Of rank 0.
class Outputs {
 public:
  explicit Outputs(const Arguments& arguments) : arguments_(arguments) {}

  // Opens them all, and sets those in `options` that Train fills. Existing files keep their
  // contents until Begin. Invalid: one cannot be written, is the same as another, or is an input of
  // this run.
  Status Open(const Program& program, TrainOptions* options);

  // What people read: to standard output, or, where one of the files is that, to standard error.
  // REQUIRES: opened.
  Status Print(const std::string& text);

  // The first step begins, after so many of the training that it continues, whose log goes on.
  Status Begin(int64_t steps_before);
  // Failed, once: the log cannot be written, or its lines are not read.
  Status OnStep(const StepReport& step);

  // After the last step, however the run ended. Returns the first error.
  Status Finish(const Program& program, const TrainReport& report);
  // Waits for the readers of lines and log. Returns the first error.
  Status Drain();

 private:
  Status OpenFile(const char* option, const std::string& path, std::optional<OutputFile>* file);
  Status OpenSave(TrainOptions* options);
  Status OpenExport(TrainOptions* options);
  Status BeginLog(int64_t steps_before);
  Status WriteProfile(const Program& program, const TrainReport& report);
  bool Waits(double silent) const;

  const Arguments& arguments_;
  const TrainOptions* options_ = nullptr;
  std::optional<OutputFile> log_, trace_, profile_;
  std::optional<LineWriter> lines_;
  bool lines_on_error_ = false;          // whose loss is no error
  std::optional<LineWriter> log_lines_;  // where the log is no file on a disk
  std::optional<SaveFolder> save_;
  std::optional<ModelFolder> export_;
  std::string saves_;  // the folder of checkpoints
  Profile machine_;    // of a profile: host, threads and cores
  bool begun_ = false;
};

}  // namespace pp
