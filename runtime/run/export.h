// Writes the trained model in Hugging Face's format, or what was trained of it in peft's: rank 0
// gets every tensor, a few megabytes at a time, from the ranks of the first replica that hold parts
// of it, and assembles the parts. No rank ever holds more of the model than before.
#pragma once

#include <functional>

#include "runtime/comm/phase.h"
#include "runtime/files/model_folder.h"
#include "runtime/files/source_files.h"
#include "schema/program.h"

namespace pp {

// kMerged: the model, with scale B A added to the weights that have an adapter.
enum class Exported : uint8_t { kModel, kAdapter, kMerged };
inline Exported ExportedOf(const Job& job, bool merged) {
  if (!job.lora.given()) return Exported::kModel;
  return merged ? Exported::kMerged : Exported::kAdapter;
}

// Rank 0's process, before the first step: files and space for all weights, which are written as
// `dtype`. Beside those of a model are `source` (source_files.h), without a config.json there one
// made from the job's model; beside an adapter its own configuration.
struct ExportedAs {
  Exported what = Exported::kModel;
  Dtype dtype = Dtype::kFp32;
};
Status BeginExport(const ExportedAs& as, const Job& job, const SourceFiles& source,
                   ModelFolder* folder);

struct ExportArgs {
  const Program* program = nullptr;
  Exported what = Exported::kModel;
  Exchange* exchange = nullptr;   // null: all ranks are in this process
  ModelFolder* folder = nullptr;  // rank 0's process; begun
  // Bytes of a stage's weights, from those of its first pipe, on a rank of this process.
  std::function<Status(int rank, int stage, int64_t offset, int64_t bytes, void* out)> copy_out;
};

// All processes call it, as a phase's work (comm/phase.h), when the last step is over: all numbers
// are in the folder, which rank 0 must finish once no process has an error. After one it can be
// called again. What can be written is, whatever else cannot.
Status ExportModel(const ExportArgs& args);

}  // namespace pp
