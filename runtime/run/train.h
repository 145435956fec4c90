// Trains: runs the ranks of this process through all steps, and gathers what they report.
//
// Prints nothing and writes no file. Either all ranks are threads of this process, or, with
// a transport, this process is one rank of several.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/slow_transport.h"
#include "runtime/comm/transport.h"
#include "runtime/compare/values.h"
#include "runtime/device/device.h"
#include "runtime/files/model_folder.h"
#include "runtime/model/optimizer.h"
#include "runtime/plan/recorder.h"
#include "runtime/run/rank.h"
#include "schema/nccl/streams.h"
#include "schema/program.h"
#include "schema/status.h"
#include "schema/timeline.h"

namespace pp {

// One step, of all ranks.
struct StepReport {
  int64_t step = 0;   // counts from 1
  int64_t steps = 0;  // of the whole training
  double loss = 0;    // mean over the step's tokens, before the update
  // Before clipping, of the loss itself; none where the plan takes none.
  std::optional<double> grad_norm;
  std::optional<double> loss_scale;  // where the plan scales the loss: by what
  bool skipped = false;              // a gradient overflowed: nothing was updated
  double learning_rate = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  std::vector<int64_t> peak_bytes;  // by rank
  std::optional<double> val_loss;   // mean over the validation's tokens, after the update
};

struct TrainOptions {
  std::string data;              // see dataset.h
  OptimizerOptions optimizer;    // and how many steps
  int64_t epochs = 0;            // of the data, in place of optimizer.steps; 0: those
  std::optional<uint64_t> seed;  // of new weights and dropout; 1
  int threads = 1;               // compute threads a rank
  std::string weights;           // a folder with model.safetensors; empty: a new model
  // Goes on from the last checkpoint in `save`, with its seed where `seed` is not given.
  bool resume = false;
  std::string save;                    // a folder for checkpoints; empty: none
  int64_t save_every = 0;              // steps; 0: the last one alone
  SaveFolder* save_to = nullptr;       // rank 0's process: of `save`
  bool exports = false;                // the trained model, when all steps are done
  ModelFolder* export_to = nullptr;    // rank 0's process: begun (BeginExport)
  std::string val_data;                // for validation losses; empty: none
  int64_t val_every = 0;               // steps; 0: after the last one alone
  std::optional<int64_t> val_batches;  // of the first ones; 10, or fewer if there are no more
  int64_t sample = 0;                  // tokens to draw after the last step
  float temperature = 1;               // see kernels/draw.h
  double stall_timeout = 300;          // seconds; 0: wait forever
  bool record = false;                 // keep events
  bool compare = false;                // keep records (compare/comparison.h)

  Transport* transport = nullptr;  // null: all ranks are threads of this process
  std::optional<Network> network;  // null: as fast as it is
  // How messages share communicators, where they are NCCL's; needs a device that has it, and
  // programs with all lists.
  std::optional<nccl::Sharings> nccl;
  // Any process: all ranks are ready, the first step has not begun. An error and it never does.
  std::function<Status()> on_begin;
  // Rank 0's process, before the first step: what else the user should know.
  std::function<void(const std::string&)> on_note;
  // Rank 0's process: each step, in order, on a thread of its own. An error stops the run.
  std::function<Status(const StepReport&)> on_step;
  // Rank 0's process, or rank 1's where rank 0 is silent: the run has failed. Called at once, on
  // this process's own thread: ranks may still be in long kernels, and other processes may go
  // before this one.
  std::function<void(const Status&)> on_failure;
  // Any process: `grace` seconds after a failure a kernel or on_step has still not come back.
  // It may be called more than once; empty: wait.
  std::function<void()> on_stuck;
  double grace = 10;
  // How often somebody asked to stop: once, and all ranks stop after a common step; twice,
  // and they stop where they are. May be null.
  const std::atomic<int>* stop_requests = nullptr;
  StepObserver* observer = nullptr;
  // What a rank computes on, and with; null: the CPU.
  std::function<std::unique_ptr<Device>(int rank, const DeviceBells&)> make_device;
  std::function<std::unique_ptr<StageExecutor>(int rank)> make_executor;
  // Called when a rank's list is bound: for tests that plant bugs.
  std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
  // Puts a transport around that of each rank of this process; null: none.
  std::function<std::unique_ptr<Transport>(Transport*)> wrap_transport;
};

class Inputs;

// What rank 0's process knows in the end. Others have their own times, events and records alone,
// and of what follows those no checkpoint, sample or error of files. Its size does not depend on
// the number of steps, but for events and records.
struct TrainReport {
  std::vector<TimeSpent> time;           // by rank
  std::vector<Event> events;             // of all ranks, on rank 0's clock; seconds since the first
  std::vector<ValueRecord> records;      // of all ranks, where the run is compared
  std::shared_ptr<const Inputs> inputs;  // null: not all records are here
  int64_t last_step = 0;
  int64_t planned_steps = 0;
  int64_t saved_step = 0;       // of the last checkpoint of this run; 0: none
  std::vector<int32_t> sample;  // after its prompt of so many tokens
  int64_t prompt = 0;
  bool text = false;  // tokens are bytes
  Status status;      // why it failed, if it did
  // Rank 0 is silent: this one noticed by itself.
  bool orphaned = false;
};

// All ranks get the same status. REQUIRES: `program` has at least the lists of this
// process's ranks.
TrainReport Train(const Program& program, const TrainOptions& options);

// What piperun asks of a program before anything else: a model, and as many ranks as it is for.
// `ranks` 0: as many as it takes.
Status CheckRunnable(const Program& program, const std::string& plan, int ranks);

}  // namespace pp
