// The end of a run, in phases that all ranks go through together (comm/phase.h), however long a
// disk takes. What cannot be made again comes first:
//
//   1 how it ended    all ranks learn the first error
//   2 the model       rank 0 writes it from everybody's weights (export.h) and gives it its name
//   3 what ranks recorded    rank 0 gets it
//   4 messages        none is under way any more; the ranks give their memory back
//   5 the rest        log, trace, profile and summary (TrainOptions::on_end)
//
// It takes no thread, file or shared memory that the run does not hold from its start. A phase ends
// early, with an error, when a rank gives no sign of life or its work fails while others need it.
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/worker.h"
#include "runtime/run/deadline.h"
#include "runtime/run/inputs.h"
#include "runtime/run/rank.h"
#include "runtime/run/train.h"

namespace pp {

struct EndArgs {
  const Program* program = nullptr;
  const TrainOptions* options = nullptr;
  std::shared_ptr<const Inputs> inputs;
  std::vector<std::unique_ptr<Rank>>* ranks = nullptr;  // of this process; their threads have ended
  std::vector<std::vector<ValueRecord>>* records = nullptr;  // of each of them
  bool begun = false;                                        // the first step
  Worker* worker = nullptr;
  Deadline* deadline = nullptr;   // of a run that does not end; null: none
  TrainReport* report = nullptr;  // with its status and last step; the rest is filled in
};
void EndRun(const EndArgs& args);

}  // namespace pp
