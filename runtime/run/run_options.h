// What a user chooses for a run: piperun's options, as one table. From a row follow the option and
// its help (runtime/main/options.cc), whether all ranks must have the same value, and whether a
// checkpoint keeps it because it decides the numbers (settings.h).
//
// To add one: a member of RunOptions or OptimizerOptions, its row in run_options_table.h, and
// whatever it is for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/slow_transport.h"
#include "runtime/model/optimizer.h"
#include "runtime/model/weight_names.h"
#include "schema/model/dtype.h"

namespace pp {

// Defaults are the rows'; these are what a caller without a command line gets.
struct RunOptions {
  std::string plan;

  // Training.
  std::vector<std::string> data;  // see runtime/files/dataset.h; patterns, too
  OptimizerOptions optimizer;     // includes the number of steps
  int64_t epochs = 0;             // of the data, instead of optimizer.steps; 0: by steps
  bool shuffle = false;           // the sequences of each pass
  bool bytes = false;             // a text's bytes are tokens of any vocabulary, and of any weights
  // Sequences are packed documents, and the token that ends each; by default the data says where
  // they begin.
  bool documents = false;
  std::optional<int64_t> end_of_text;
  std::string weights;  // a folder with model.safetensors; empty: a new model
  UnusedWeights unused_weights = UnusedWeights::kRefuse;
  std::string adapter;           // a folder with an adapter to start from; empty: a new one
  std::optional<uint64_t> seed;  // of new weights and dropout; by default 1
  bool compare = false;          // record values (compare/comparison.h)

  // Evaluation.
  std::vector<std::string> val_data;   // for validation losses; empty: none
  int64_t val_every = 0;               // steps; 0: only after the last one
  std::optional<int64_t> val_batches;  // 0: all; by default 10, or fewer if there are fewer
  int64_t sample = 0;                  // tokens to draw after the last step
  std::string prompt;                  // that they continue; empty: the data's beginning
  float temperature = 1;               // see kernels/draw.h

  // Checkpoints.
  std::string save;        // a folder for checkpoints; empty: none
  int64_t save_every = 0;  // steps; 0: only the last one
  int64_t keep = 2;        // checkpoints
  bool keep_best = false;  // and save after the validations with the least loss so far
  // Continues from the last checkpoint in `save`, with its seed unless `seed` is given.
  bool resume = false;
  bool new_data = false;  // the checkpoint's training had other data
  // Folders for the trained model or its adapter, and for the model with its adapter; empty: none.
  std::string export_path, merged_path;
  Dtype export_dtype = Dtype::kFp32;  // of its tensors, or kBf16

  // Logs. kStandardOutput stands for -.
  std::string log, profile, trace;
  int64_t log_every = 1;  // steps from one printed line to the next

  // Machine.
  int threads = 1;  // compute threads per rank
  std::string backend = "cpu", transport_name = "auto";
  std::optional<Network> network;  // null: messages are not slowed down
  double stall_timeout = 300;      // seconds; 0: wait forever
  std::string weight_rounding = "nearest", gemms, tune_gemms, cuda_experiments;

  // What follows from them.
  bool record = false;         // events for a trace
  bool exports = false;        // after all steps, into export_path,
  bool export_merged = false;  // which was merged_path
  // Which kernels compute, which decides rounding: by option, as text.
  std::map<std::string, std::string> kernels;
};

}  // namespace pp
