// The ideal timeline of a compute-only program: when each instruction would run if messages needed
// no place in the lists. Passes that place messages or move instructions use it; schemes never do.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "schema/cost_model.h"
#include "schema/execute.h"
#include "schema/program.h"
#include "schema/status.h"

namespace pp {

// A value that one device produces and another one uses.
struct Message {
  Value value;
  int from, to;
  // List indices. Of two instructions that overlap, the second produces and the first consumes for
  // both. A WAIT for the value counts as its consumer. -1: nothing uses it.
  int producer, consumer;
};

// All messages that a compute-only program needs, those of a channel in the order in
// which they are made.
std::vector<Message> FindMessages(const Program& program);

// How long an instruction, or two that overlap, occupy the compute lane; a reduction only starts
// there.
double ComputeTime(const std::vector<Instruction>& list, size_t index, const Durations& durations);

// Costs that are never 0 for an instruction that computes, so that the order of a timeline is the
// order of time.
CostModel PositiveCosts(const CostModel& costs);
Durations PositiveDurations(const CostModel& costs, const Program& program);

// When messages arrive: one after the other on each channel, and a latency later.
class Arrivals {
 public:
  explicit Arrivals(const Durations& durations) : durations_(durations) {}
  // The arrival of a message produced at `time`. Call it in the order in which a channel's are
  // produced.
  double Of(const Message& message, double time);

 private:
  const Durations& durations_;
  std::map<std::pair<int, int>, double> free_;  // channel -> when its last message is over
};

// device -> instruction -> when. Error: "deadlock: ..." if the lists wait for one another in a
// cycle.
Result<std::vector<std::vector<Span>>> IdealTimeline(const Program& program,
                                                     const std::vector<Message>& messages,
                                                     const Durations& durations);

}  // namespace pp
