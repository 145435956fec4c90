// What a run writes besides standard output: log, trace, checkpoints and the exported model.
#pragma once

#include <optional>
#include <string>

#include "runtime/files/checkpoint.h"
#include "runtime/files/model_folder.h"
#include "runtime/files/output_file.h"
#include "runtime/main/options.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
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
  Status Print(const std::string& text) const;

  // The first step begins, after so many of the training that it continues, whose log goes on.
  Status Begin(int64_t steps_before);
  // Failed: the log cannot be written. Nothing more is written to it.
  Status OnStep(const StepReport& step);

  // After the last step, however the run ended. Returns the first error.
  Status Finish(const Program& program, const TrainReport& report);

 private:
  Status OpenFile(const char* option, const std::string& path, std::optional<OutputFile>* file);
  Status OpenSave(TrainOptions* options);
  Status OpenExport(const Program& program, TrainOptions* options);

  const Arguments& arguments_;
  std::optional<OutputFile> log_, trace_, profile_;
  std::optional<SaveFolder> save_;
  std::optional<ModelFolder> export_;
  std::string saves_;  // the folder of checkpoints
  int threads_ = 1;    // of a rank
  int ranks_ = 1;      // of this process
  bool begun_ = false;
};

}  // namespace pp
