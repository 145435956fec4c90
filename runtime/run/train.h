// Training: runs the ranks of this process through all steps and gathers their reports.
//
// Prints nothing; it writes only checkpoints and exported models. Either all ranks are threads of
// this process, or, with a transport, this process is one of several ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/transport.h"
#include "runtime/comm/worker.h"
#include "runtime/device/device.h"
#include "runtime/files/model_folder.h"
#include "runtime/plan/recorder.h"
#include "runtime/record/values.h"
#include "runtime/run/rank.h"
#include "runtime/run/run_options.h"
#include "schema/base/status.h"
#include "schema/format/timeline.h"
#include "schema/nccl/communicators.h"
#include "schema/program.h"

namespace pp {

class Inputs;
struct TrainReport;

// One step, of all ranks.
struct StepReport {
  int64_t step = 0;    // counts from 1
  int64_t steps = 0;   // of the whole training
  double loss = 0;     // mean over the step's targets, before the update
  bool empty = false;  // it had no target: there is no loss, and nothing was updated
  // Before clipping, of the unscaled loss; none if the plan computes none.
  std::optional<double> grad_norm;
  std::optional<double> loss_scale;  // if the plan scales the loss
  bool skipped = false;              // a gradient overflowed: nothing was updated
  double learning_rate = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  std::vector<int64_t> peak_bytes;  // by rank
  std::optional<double> val_loss;   // mean over the validation's tokens, after the update
};

// What a user chooses, how ranks talk, who is told what, and what tests replace, in that order: one
// list, because `piperun`, the comparison and tests all fill some of each.
struct TrainOptions : RunOptions {
  SaveFolder* save_to = nullptr;     // rank 0's process: of `save`
  ModelFolder* export_to = nullptr;  // rank 0's process: of `export_path`, opened

  Transport* transport = nullptr;  // null: all ranks are threads of this process
  Worker* worker = nullptr;        // for the phases of its start and end; null: one of its own
  // How messages share NCCL communicators, with NCCL; needs a device with NCCL, and a program with
  // all lists.
  std::optional<nccl::Sharings> nccl;
  // Any process: all ranks are ready, and the first step has not begun. After an error it does not
  // begin. `steps_before`: of the training that it continues.
  std::function<Status(int64_t steps_before)> on_begin;
  // Rank 0's process, before the first step: a note for the user.
  std::function<void(const std::string&)> on_note;
  // Rank 0's process: each step, in order, on a thread of its own. An error stops the run.
  std::function<Status(const StepReport&)> on_step;
  // Rank 0's process, or rank 1's if rank 0 does not answer: the run has failed, maybe before its
  // first step. Called immediately, on the thread that called Train: ranks may still be in long
  // kernels, and other processes may end before this one.
  std::function<void(const Status&)> on_failure;
  // Any process, between the first step and the last, several times a second: an error stops the
  // run.
  std::function<Status()> on_look;
  // Any process: what is left to write after the last step, however the run has ended; all ranks
  // get the first error that one of them returns, which is then the report's status.
  std::function<Status(const TrainReport&)> on_end;
  // Any process, on any thread: `grace` seconds after a failure, or after the second request to
  // stop, something has still not returned. It may be called more than once. Null: wait.
  std::function<void()> on_stuck;
  double grace = 10;
  // Counts the requests to stop: after one, all ranks stop after a common step; after two, they
  // stop where they are. May be null.
  const std::atomic<int>* stop_requests = nullptr;
  bool Stops() const { return stop_requests != nullptr && stop_requests->load() >= 1; }
  bool StopsNow() const { return stop_requests != nullptr && stop_requests->load() >= 2; }
  StepObserver* observer = nullptr;
  // A rank's device and executor; null: the CPU's.
  std::function<std::unique_ptr<Device>(int rank, const DeviceBells&)> make_device;
  std::function<std::unique_ptr<StageExecutor>(int rank)> make_executor;
  // Called when a rank's list is bound: for tests that plant bugs.
  std::function<void(int rank, BoundList*, std::vector<CollectiveArgs>*)> after_bind;
  // The training's batches; null: those of the data.
  std::function<std::unique_ptr<Batches>(const Batches::Args&)> make_batches;
  // Wraps the transport of each rank of this process; null: does not.
  std::function<std::unique_ptr<Transport>(Transport*)> wrap_transport;
};

// What rank 0's process knows at the end. Other processes have only their own times, events and
// records, and no saved step, sample or error of files. Its size does not depend on the number of
// steps, except for events and records.
struct TrainReport {
  std::vector<TimeSpent> time;           // by rank
  std::vector<Event> events;             // of all ranks, on rank 0's clock; seconds since the first
  std::vector<ValueRecord> records;      // of all ranks, if the run is compared
  std::shared_ptr<const Inputs> inputs;  // null: not all records were gathered
  int64_t last_step = 0;
  int document_length = 0;  // for a profile: Job::document_length, as it was; 0: no documents
  int64_t planned_steps = 0;
  int64_t saved_step = 0;              // of the last checkpoint of this run; 0: none
  std::optional<Manifest::Best> best;  // of --keep-best
  Status unsaved;                      // why the last one could not be saved, if it could not
  std::vector<int32_t> sample;         // after its prompt of so many tokens
  int64_t prompt = 0;
  bool text = false;  // tokens are bytes
  Status status;      // why it failed, if it did
  // Rank 0 does not answer: this rank noticed by itself.
  bool orphaned = false;
};

// All ranks get the same status. REQUIRES: `program` has at least the lists of this
// process's ranks.
TrainReport Train(const Program& program, const TrainOptions& options);

// Invalid: the program has no model, or is for another number of ranks. `ranks` 0: any number.
Status CheckRunnable(const Program& program, const std::string& plan, int ranks);

}  // namespace pp
