// Puts weight halves into lists that have forwards and input halves only: a device that would wait,
// or that has no memory left for its next forward, runs its oldest weight half.
#pragma once

#include <vector>

#include "compiler/play/messages.h"
#include "schema/cost_model.h"
#include "schema/program.h"
#include "schema/status.h"

namespace pp {

struct WeightFill {
  int most_alive;       // activations on a device, where weight halves can help that
  double least_bubble;  // a bubble must be at least this much of a weight half long to take it
};

struct FilledLists {
  std::vector<std::vector<Instruction>> lists;  // by device
  double makespan = 0;
};

// `messages`: of `program`, as FindMessages gives them. Error: "deadlock: ...".
Result<FilledLists> FillWeights(const Program& program, const std::vector<Message>& messages,
                                const Durations& durations, const WeightFill& fill);

}  // namespace pp
