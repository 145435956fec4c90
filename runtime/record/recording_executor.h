// Wraps another executor and makes records of its results (values.h), in memory that the host can
// read.
#pragma once

#include <memory>
#include <vector>

#include "runtime/device/peers.h"
#include "runtime/device/stage_call.h"
#include "runtime/files/batches.h"
#include "runtime/record/values.h"
#include "schema/topology.h"

namespace pp {

struct RecordingArgs {
  const Program* program = nullptr;  // remains the caller's; makes no versions of weights
  Place place;
  const Peers* peers = nullptr;                 // null: there are none
  const Batches* batches = nullptr;             // of the run: how many micro-batches a step has
  int64_t steps_before = 0;                     // of the training, before this run
  int64_t steps = 0;                            // of this run
  std::vector<ValueRecord>* records = nullptr;  // of this rank; the caller's after the run
};

// Invalid: a run that cannot be compared, because its micro-batches of a step use different
// weights, or the records of its steps would take too much memory.
Status CheckComparable(const Program& program, int64_t steps);

// Throws std::bad_alloc if the records of all steps do not fit in memory.
std::unique_ptr<StageExecutor> MakeRecordingExecutor(std::unique_ptr<StageExecutor> inner,
                                                     const RecordingArgs& args);

}  // namespace pp
