// What the devices exchange: operations that those of other devices match, in whatever order a
// transport takes them.
//
//   device 0   F0  SEND_act m0 ─┐                  one transfer, two ends; it needs the sender's F0
//   device 1   RECV_act m0 ─────┘ WAIT act m0 F0   over and the receiver's buffer free
//
// A *channel* is one direction between two devices. It delivers in the order of its sends, so its
// receives must stand in the same order. A *flow* is what no transport ever splits: the messages of
// one channel and one kind of value, or the collectives of one set of devices.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/walk.h"

namespace pp::play {

// One instruction that sends, receives or reduces.
struct End {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  int32_t transfer = -1;
  int32_t device = -1;
  int32_t index = -1;  // of the instruction
  // The last compute-lane instruction that must be over before it can start, including those of the
  // ends before it in its flow; -1 if there is none. Never smaller than that of the end before.
  // Of a message of a blocking plan: the instruction before it.
  int32_t after = -1;
  int32_t joined = kNever;  // the compute-lane instruction that waits for it
};

struct Transfer {
  int32_t flow = -1;
  int32_t first_end = 0, ends = 0;  // in Traffic::ends; of a message the sender's first
};

struct Flow {
  std::vector<int32_t> members;  // of messages: from, to; of collectives: devices, ascending
  Kind kind = Kind::kNone;       // of messages: act or grad; none of collectives
  bool IsCollective() const { return kind == Kind::kNone; }
};

struct Traffic {
  std::vector<Flow> flows;
  std::vector<Transfer> transfers;
  std::vector<End> ends;
  std::vector<std::vector<int32_t>> started_by;  // device -> its ends, in list order
  // device -> instruction -> the end that the compute lane waits for there, or -1. A blocking
  // message is waited for in its place.
  std::vector<std::vector<int32_t>> joins;

  std::span<const End> EndsOf(const Transfer& transfer) const {
    return {ends.data() + transfer.first_end, static_cast<size_t>(transfer.ends)};
  }
  const Flow& FlowOf(const End& end) const { return flows[transfers[end.transfer].flow]; }
};

// Of the bodies of `unrolled` (see Unrolled in sections.h). REQUIRES: `waits_for` of each device
// comes from WalkList. Error: "channel d0 to d1: message 1 is 'SEND_act s0 m1 to d1' at its start
// and 'RECV_act s0 m2 from d0' at its end (...)".
Result<Traffic> FindTraffic(const Program& unrolled, const std::vector<WaitsFor>& waits_for);

// "device 0 'SEND_act s0 m1 to d1' (instruction 7)".
std::string NameOf(const Program& unrolled, int device, int index);
std::string NameOf(const Program& unrolled, const End& end);

}  // namespace pp::play
