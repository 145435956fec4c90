// What a plan takes at least, in bytes and in time: the bounds by which tune leaves candidates out.
// Their comments say why they hold, and a test compares it with every plan of small spaces.
#pragma once

#include "compiler/machine/costs.h"
#include "compiler/play/ideal.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

// The most that a device holds all the time and that its lists, if there are any, keep alive; less
// than its arena.
double LiveBytes(const Program& program, Layouts* layouts);

// At least: a device's work for all micro-batches, the way of the first one to it, and the way back
// from its last backward; weight halves, and what it loses to reductions, may fall into that. With
// `recomputes` everything is recomputed, otherwise what the lists recompute, in whatever order.
// REQUIRES: the costs give r, bi and bw.
double WorkBound(const Program& program, const CostModel& costs, int microbatches, bool recomputes);

// At least: the schedule, the reductions, each of which starts once its stage's last backward is
// over and which a device runs one after the other, and, as the gradients' norm needs all of them,
// the steps. With ZeRO-1 half of a reduction follows its step.
double ScheduleBound(const Program& program, const CostModel& costs, const Spans& spans);

}  // namespace pp
