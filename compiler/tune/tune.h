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
// The space: every scheme that trains the same, with its own number of stages on a device or two to
// four, on one device those that differ there; every legal tp within a node, pp and micro-batch
// size; layers balanced by work; ZeRO-1 where there are copies. A plan that does not fit is tried
// with everything recomputed and, up to four thousand stages times micro-batches, with Mario's
// passes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/machine/machine.h"
#include "compiler/tune/drift.h"
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
  size_t shown = 5;   // candidates whose time is exact
  // What is given: nothing or 0 is free.
  std::string scheme;
  int pp = 0, tp = 0, micro_batch_size = 0;
  std::function<void(const std::string& doing)> progress;
};

enum class Level : uint8_t { kWork, kSchedule, kPlan };

struct Candidate {
  // What compiles it; pp is shape.devices, dp is replicas.
  CompileOptions compile;
  Level level = Level::kWork;
  bool counted = false;  // with Mario's passes: the bound on its work has what they recompute
  double seconds = 0;    // of a step: a lower bound, and the time at kPlan
  double bytes = 0;      // of the device that needs most: at least, and exactly at kPlan
  double bubble = 0;     // at kPlan
  bool fits = true;
  std::string lacks;  // if it does not fit: what takes the memory, or that it is too long a plan
};

struct Tuned {
  std::vector<Candidate> best;   // exact, fastest first; all others take at least as long
  std::vector<Candidate> rest;   // by their bounds
  std::vector<Candidate> large;  // do not fit
  std::optional<Program> plan;   // of the best
  double model_operations = 0;   // of a step, by which MFU counts: 6N + 12LCT for each token
  // How far the best one's messages and reductions may take longer before any other, with the costs
  // as they are, may be faster.
  std::optional<Drift> drift;
  double seconds = 0;  // that the search took
};

// Error: no candidate is legal, or none fits (the one that needs least is named).
Result<Tuned> Tune(const TuneOptions& options);

}  // namespace pp
