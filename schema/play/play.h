// The one engine of lowered lists: plays them through with streams. Does every device reach the
// end, and when does what happen? The proof of progress, the proof for NCCL, the search for
// deadlocks among collectives and the simulation are readings of one play (execute.h, nccl/prove.h,
// compiler/simulate.h, compiler/why.h).
//
// A device's compute lane follows its list and stops at a WAIT until what it waits for is over. An
// item of a stream starts when the one before it is over and the compute lane has passed what its
// operations need; it then occupies its stream until each of its operations is matched by the other
// ends, which have started, too, and has taken its time. Nothing is buffered between the ends. What
// has started once stays started, so without a limit of kernels all orders end in one state and one
// time (as in a Kahn network). Only links make an order matter: first come, first served.
//
// If fewer kernels than streams can run at once on a device, that no longer holds: whoever comes
// first holds the place. The play then takes the worst order that it knows: kernels take their
// places as early as they can, first those whose partners have not come.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/play/streams.h"
#include "schema/semantics/cost_model.h"

namespace pp::play {

inline constexpr int kNoLimit = 1 << 30;

// What transfers share: one occupies all links of its flow for its time, and then the next one that
// is ready. Without links each stream has a link of its own.
struct Links {
  int32_t count = 0;
  std::vector<std::vector<int32_t>> of_flow;  // empty where there are none
};

struct Options {
  // Null: nothing takes time, and only the end is asked for.
  const Durations* durations = nullptr;
  const Links* links = nullptr;  // REQUIRES durations
  int kernels = kNoLimit;        // at least 1: operations that run concurrently on a device
};

// Why a transfer started when it did: the condition that was met last.
struct Start {
  double time = 0;
  int32_t end = -1;     // of which of its ends
  bool queued = false;  // the item before it in that end's stream; otherwise the end's `after`
  int32_t behind = -1;  // if it was ready before: the transfer that occupied a link of it
};

// What does not proceed in a deadlock, and why: because of the next one of the cycle.
struct Blocked {
  int32_t device = -1, index = -1;  // the instruction
  int32_t end = -1;  // of a message or a collective: in Traffic::ends; -1 in a compute lane
  std::string_view why = {};  // "waits for", "needs", "comes after", "is queued behind" ...
};

struct Played {
  std::vector<size_t> next;    // device -> the instruction before which its compute lane stopped
  std::vector<Blocked> cycle;  // of a deadlock
  // Where there are durations, and no deadlock:
  std::vector<std::vector<double>> over;  // device -> instruction -> when it is over
  std::vector<Start> starts;              // by transfer
};

// Error: a deadlock, as the cycle of what waits for what: "device 0 'RECV_grad s0 m0 from d1'
// (instruction 6) is queued behind device 0 '...' (instruction 5), which waits to be matched by
// device 1 '...' ..., which ... the first". `played` may be null.
Status Play(const Program& unrolled, const Traffic& traffic, const Streams& streams,
            const Options& options, Played* played);

}  // namespace pp::play
