// The memory of its host that a rank takes: what the plan says, and what the plan does not know.
#pragma once

#include <cstdint>

#include "schema/program.h"

namespace pp {

struct HostBytesArgs {
  int threads = 1;       // per rank
  bool resumes = false;  // from a checkpoint
  bool saves = false;    // checkpoints
  bool exports = false;
  int64_t source = 0;      // bytes of what goes with the model (source_files.h)
  bool processes = false;  // ranks are processes, not threads of one
};

// Of these, what a rank takes while it saves and at its end, and so must have from the start.
int64_t HeldBytesOf(int rank, const HostBytesArgs& args);

// The sum of, in bytes:
//   arena      as planned
//   threads    the working space of all compute threads but one, which is in the arena
//   loading    the largest tensor, and a record of a checkpoint: they are copied from there
//   source     rank 0: as read, and as exported
//   held       what saving and the end of the run take
//   pieces     of its sends through shared memory (ShmSegment), if all peers are on its host
//   process    the program's own
// REQUIRES: the program has all lists.
int64_t HostBytesOf(const Program& program, int rank, const HostBytesArgs& args);

}  // namespace pp
