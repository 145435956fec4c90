// Who ran what when: what the simulator predicts and what a run records, in one form, so that one
// viewer can overlay both.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/json.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

// One execution of an instruction.
struct Event {
  int32_t rank = 0;
  int32_t device = 0;
  int32_t routine = -1;  // of Program::routines; -1: of a body
  int32_t index = 0;     // in the device's list
  int32_t step = 1;      // counts from 1
  double start = 0;      // seconds
  double duration = 0;   // seconds
};

const std::vector<Instruction>& ListOf(const Program& program, const Event& event);
inline const Instruction& InstructionOf(const Program& program, const Event& event) {
  return ListOf(program, event)[event.index];
}

// The lane that an instruction runs in: compute first, then reductions, then each peer's
// two directions.
struct LaneName {
  int id;  // ascending in that order
  std::string name;
};
LaneName LaneOf(const Instruction& instruction);

// Chrome's trace format, which Perfetto opens: pid = rank, tid = lane, one complete event per
// instruction with its text as name, and its step and index as arguments, and its routine, where it
// is not of a body. The lane of a message is its direction and peer.
//
// Calls write(piece) with one piece of the text after the other, until a call fails.
// REQUIRES: the events come from lists of `program`.
Status WriteChromeTrace(const Program& program, std::span<const Event> events,
                        const std::function<Status(std::string_view)>& write);

// The same as one string.
std::string ChromeTrace(const Program& program, std::span<const Event> events);

// The events of such a trace, which are all that is kept of it. Error: no trace, not one of this
// program, or one of more events than that.
inline constexpr size_t kMostEvents = 100'000'000;
Result<std::vector<Event>> ParseChromeTrace(const Program& program, const JsonPieces& next);

// The same of one string.
Result<std::vector<Event>> ParseChromeTrace(const Program& program, std::string_view text);

}  // namespace pp
