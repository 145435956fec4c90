// Which plan: scheme, pipeline, tensor and data parallelism, micro-batch size and recomputation for
// a model, a machine, a number of its devices and a global batch.
//
// The search is best first, by bounds that are proved, so that nothing is left out by luck. A
// candidate goes through three levels, each costlier and closer; always the one with the least
// bound goes on, and the search is over when that one's time is exact:
//
//   work       the busiest device's work, and the way to it, first without and then with what
//              Mario's passes recompute; what each device holds from the first step to the last
//              (regions), in bytes
//   schedule   the compute lists on their ideal timeline, reductions and an optimizer's step; the
//              values that those lists keep alive, in bytes
//   plan       compiled, proved and simulated; the arena, in bytes
//
// The space: every scheme that trains the same, with every number of stages on a device that
// divides the layers (space.h); every legal tp within a node, pp and micro-batch size; both
// orders of ranks; ZeRO-1 and not; sequence parallelism; layers balanced by work, where the first
// and the last stage may have none. Outputs are kept rather than recomputed as far as they fit
// (--keep); a plan that does not fit without is tried with everything recomputed and, up to four
// thousand stages times micro-batches, with Mario's passes; of those that could be fastest, if they
// fitted, a few with fit-memory. kNotConsidered says what is not in it.
//
// Of the plans that take as long as the fastest, but for the model's error, the simplest is picked
// (pick.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/compile.h"
#include "compiler/machine/machine.h"
#include "compiler/tune/bounds.h"
#include "schema/base/status.h"
#include "schema/format/profile.h"

namespace pp {

struct TuneOptions {
  Job job;  // model, sequence length, dtype, backend
  Machine machine;
  Profiles profiles;  // of this model: if there are some, costs are theirs, not the machine's
  int devices = 0;    // of the machine, in all
  double memory = 0;  // bytes of a device
  int batch = 0;      // sequences in a step, over all replicas
  size_t shown = 3;   // candidates whose time is exact
  // What is given: nothing or 0 is free.
  std::string scheme;
  int pp = 0, tp = 0, dp = 0, micro_batch_size = 0, stages_per_device = 0;
  std::optional<int> zero;
  std::optional<RankOrder> rank_order;
  bool sequence_parallel = false, keep = false;  // whether the job's are given
  double search_seconds = 0;                     // of fit-memory
  bool mario = true;                             // whether Mario's passes are tried
  std::vector<int> cuts;    // layers of each stage, if they are given: 1f1b or interleaved
  std::vector<int> beside;  // the same, to be compared with the pick
  double tokens = 0;        // of the whole training
  std::function<void(const std::string& doing)> progress;
};

// What tune does not look at.
inline constexpr std::string_view kNotConsidered =
    "FSDP and ZeRO-2 and 3, context and expert parallelism, offloading, stages of unequal numbers "
    "of layers but for the first and the last, --stage-map, --group-size";

enum class Level : uint8_t { kWork, kSchedule, kPlan };

struct Candidate {
  // What compiles it; pp is shape.devices, dp is replicas.
  CompileOptions compile;
  Level level = Level::kWork;
  bool open = false;     // at kWork: ZeRO and the order of ranks are not decided yet
  bool counted = false;  // with Mario's passes: the bound on its work has what they recompute
  double seconds = 0;    // of a step: a lower bound, and the time at kPlan
  double bytes = 0;      // of the device that needs most: at least, and exactly at kPlan
  double bubble = 0;     // at kPlan
  // At kPlan they add up to a step: what a device computes and updates, on average; how much longer
  // the step is by messages and by reductions; and the bubble, the rest. Else PartsByWork.
  Parts parts;
  bool fits = true;
  std::string lacks;  // if it does not fit: what takes the memory, or that it is too long a plan
};

// What the pick depends on: with a price of the machine that many times as large another plan,
// without Mario's passes and fit-memory, is faster than it by more than the model's error.
struct Dependence {
  std::string_view price;  // "between.bandwidth"
  double value = 0;        // as it is, in bytes per second
  struct Change {
    double factor = 1;
    double saves = 0;  // of what the pick takes then
    Candidate pick;    // the other plan
  };
  std::optional<Change> lower, higher;  // near to 1; nothing: none at a sixteenth, at 16 times
};

struct Tuned {
  std::vector<Candidate> best;   // exact, fastest first; all others take at least as long
  size_t pick = 0;               // of them the simplest that is within the error
  std::vector<Candidate> rest;   // by their bounds
  std::vector<Candidate> large;  // do not fit
  std::optional<Program> plan;   // of the pick
  double model_operations = 0;   // of a step, by which MFU counts: 6N + 12LCT for each token
  size_t unfitted = 0;           // that could be the fastest with fit-memory, which was not tried
  std::vector<Dependence> dependences;  // on prices of the machine's description
  std::optional<Candidate> beside;      // the fastest with TuneOptions::beside, if one fits
  double seconds = 0;                   // that the search took
};

// Error: no candidate is legal, or none fits (the one that needs least is named).
Result<Tuned> Tune(const TuneOptions& options);

}  // namespace pp
