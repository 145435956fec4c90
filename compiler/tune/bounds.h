// What a plan takes at least, in bytes and in time: the bounds by which tune leaves candidates out.
// Their comments say why they hold, and a test compares it with every plan of small spaces.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/machine/costs.h"
#include "compiler/play/ideal.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// What a step is made of, in seconds.
struct Parts {
  double compute = 0, bubble = 0, messages = 0, reductions = 0, optimizer = 0;
};

// What a device holds all the time, and the most that its list keeps alive beside it; less than its
// arena.
class LiveBytes {
 public:
  // REQUIRES: the program has a job; its lists do not matter.
  LiveBytes(const Program& program, Layouts* layouts);
  double Of(int device, const std::vector<Instruction>& list) const;

 private:
  std::vector<int64_t> state_;        // by device
  std::vector<int64_t> kept_, full_;  // by stage
};
// Of the device that needs most; the program may have no lists.
double MostLiveBytes(const Program& program, Layouts* layouts);

// At least: a device's work for all micro-batches, the way of the first one to it, and the way back
// from its last backward; weight halves, and what it loses to reductions, may fall into that. With
// `recomputes` everything is recomputed, otherwise what the lists recompute, in whatever order.
// REQUIRES: the costs give r, bi and bw.
double WorkBound(const Program& program, const CostModel& costs, int microbatches, bool recomputes);

// What each part of a step takes on a device on average, hidden behind others or not, in seconds;
// of lists that recompute some, without that. No bubble.
Parts PartsByWork(const Program& program, const CostModel& costs, int microbatches,
                  bool recomputes);

// At least: the schedule, the reductions, each of which starts once its stage's last backward is
// over and which a device runs one after the other, and, as the gradients' norm needs all of them,
// the steps. With ZeRO-1 half of a reduction follows its step.
double ScheduleBound(const Program& program, const CostModel& costs, const Spans& spans);

// Seconds of recomputation that at least it takes to free a byte of what forwards keep; infinite if
// they keep nothing.
double LeastToFree(const Program& program, const CostModel& costs, Layouts* layouts);

}  // namespace pp
