// The options of piperun.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/agree.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"

namespace CLI {
class App;
}

namespace pp {

// The options as typed, a member each. Numbers stay text until they are checked, so that every
// wrong one gets the same kind of error.
struct Arguments {
  std::string plan, data, weights, export_to, save, save_every, log, trace, profile, net;
  std::string steps, epochs, seed, threads = "1", stall_timeout = "300", log_every = "1";
  std::string gemms, tune_gemms, weight_rounding = "nearest", cuda_experiments;
  std::string backend = "cpu", transport = "auto", lr_schedule = "constant";
  std::string val_data, val_every, val_batches, sample, temperature;
  bool resume = false, new_data = false, compare = false;
  std::string lr = "3e-4", min_lr, weight_decay = "0.1", grad_clip, warmup_steps = "0";
  std::string loss_scale, loss_scale_every;
};

void DescribeOptions(CLI::App& app, Arguments& arguments);

// Invalid: the first option whose value is wrong.
Status ParseOptions(const Arguments& arguments, TrainOptions* options);

// The steps from one printed line to the next. Invalid: not a whole number from 1.
Result<int64_t> ParseLogEvery(const Arguments& arguments);

// The files and folders that a run reads, and so must not write to; some may not exist.
std::vector<std::string> InputPaths(const Arguments& arguments);

// The options that must be the same on all ranks. File names may differ.
std::vector<Item> DigestOptions(const TrainOptions& options);

}  // namespace pp
