// Plays a program on ordered channels: who does what when, or where everybody is stuck. The
// verifier asks whether the end is reached, the simulator when.
//
// The rules are those of the runtime. A device runs its lanes concurrently. Compute instructions
// and WAITs follow one another; a message starts when both its ends have done what it waits for
// (WaitsFor) and the previous message on its channel is over; a reduction starts when all its
// members have reached it, and a device does one after the other. A message occupies its channel
// for its cost and arrives a latency later. Two instructions that overlap run as one. With blocking
// sends, SEND and RECV are in the compute lane and wait for each other. Nothing is buffered between
// the two ends of a message: a program that finishes here finishes on any transport.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "schema/base/status.h"
#include "schema/play/play.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/walk.h"

namespace pp {

struct Span {
  double start = 0, end = 0;
};

struct Execution {
  std::vector<std::vector<Span>> spans;  // device -> instruction of its body
  double makespan = 0;                   // end of the last instruction
  // The play that this is a reading of.
  play::Traffic traffic;
  play::Streams streams;
  std::optional<play::Links> links;
  play::Played played;
};

// One body, starting on empty devices. REQUIRES: `waits_for` of each device comes from
// WalkList. Error: channels that do not match, or "deadlock: device 0 stops at 'WAIT
// grad s0 m0'; device 1 stops at ... (device 0 '...' waits for ..., which ... the first)", a cycle.
// `execution` may be null.
Status Execute(const Program& program, const std::vector<WaitsFor>& waits_for,
               const CostModel& costs, Execution* execution);

// The same on another transport: `traffic` as FindTraffic found it, or less of it; `links`: those
// that it shares, if any.
Status Execute(const Program& program, play::Traffic traffic, play::Streams streams,
               std::optional<play::Links> links, const CostModel& costs, Execution* execution);

// The error of devices that have stopped, each before instruction `next`, because of a cycle.
Status Deadlock(const Program& program, std::span<const size_t> next,
                const std::vector<play::Blocked>& cycle);

}  // namespace pp
