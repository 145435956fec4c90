// split-backward: every backward in two halves (Qi et al., 2024). The input half takes the place of
// the backward, since the previous stage waits for it; the weight half waits for a bubble.
//
//   d0 | F0 F1  .  . B0 -- F2 B1 --  . B2 --   =>   d0 | F0 F1  . I0 W0 F2 I1 W1 I2 W2
//   d1 |  . F0 B0 -- F1 B1 -- F2 B2 --  .  .   =>   d1 |  . F0 I0 F1 I1 W0 F2 I2 W1 W2
//
// The lists are played. A device that waits, or that has no memory left for its next forward, runs
// its oldest weight half (play/ideal.h). Memory: as much as the device with the most had
// before. Several thresholds for the length of a bubble are tried; the fastest wins.
#include <algorithm>

#include "compiler/pass.h"
#include "compiler/passes/schedule.h"
#include "compiler/play/ideal.h"

namespace pp {
namespace {

int PeakOf(const std::vector<Instruction>& list) {
  int alive = 0, peak = 0;
  for (const Instruction& i : list) peak = std::max(peak, alive += ActivationChange(i.op));
  return peak;
}

}  // namespace

Status SplitBackward(Program& program, const PassContext& context) {
  PP_RETURN_IF_ERROR(CheckWholeBackwards(program, "split-backward"));
  DropMarks(program);
  int peak = 0;
  for (const DeviceList& list : program.lists) peak = std::max(peak, PeakOf(list.body));
  for (DeviceList& list : program.lists)
    for (Instruction& i : list.body)
      if (i.op == Op::kBackward) i.op = Op::kBackwardInput;
  const std::vector<Message> messages = FindMessages(program);
  const Durations durations(context.costs, program);
  FilledLists best;
  for (double least : {0.0, 0.5, 1.0}) {
    auto filled = FillWeights(program, messages, durations, {peak, least});
    if (!filled.ok()) return filled.status();
    if (best.lists.empty() || filled->makespan < best.makespan) best = std::move(*filled);
  }
  for (int d = 0; d < program.devices; ++d) program.lists[d].body = std::move(best.lists[d]);
  return {};
}

}  // namespace pp
