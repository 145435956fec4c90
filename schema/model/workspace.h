// What a rank's kernels need beside their operands, by kind of device: a region of its arena.
#pragma once

#include <cstdint>

#include "schema/model/job.h"

namespace pp {

// Offsets and sizes in bytes, from the region's beginning. The same for all ranks of a job.
struct Workspace {
  int64_t angles = 0;  // from the first step to the last: a Rope's cosines and sines, [T, D/2] each
  int64_t first_keys = 0;  // as long: of attention with a window, an int32 for each of T queries
  // With Job::documents, of the micro-batch in work, int32s: the first key that each query sees,
  // [B, T], and each token's position in its document, [B, T].
  int64_t documents = 0;
  int64_t kernels = 0;  // of one kernel of ours at a time; on a CPU, of one thread
  int64_t kernel_bytes = 0;
  // Of a GPU's library of matrix products.
  int64_t products = 0;
  int64_t product_bytes = 0;
  int64_t bytes = 0;  // in all
};

// REQUIRES: CheckJob(job).ok().
Workspace WorkspaceOf(const Job& job);

}  // namespace pp
