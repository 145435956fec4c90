// Why devices wait: the causes of a device's idle time, what each of them costs, and the critical
// path. Readings of one play (schema/play/play.h), and of it played again without a cause.
//
//   d1  ···· F0 ·· F1 B0 ···· B1 ······      warm-up | gaps by what each WAIT in them waited for |
//       warm    gap      gap     drain       drain; they sum to makespan - busy
//
// A WAIT for a message or a reduction is cut by the latest moment at which each of these could have
// ended it: since the others had done their part (the dependence, which no transport removes),
// since the channel, the link or the memory was free, and since the transfer was over.
//
//   WAIT act s0 m0   ├─ dependence ─┼─ channel, link, buffer ─┼─ message ─┤
//                    │              d0 has made it            starts      arrives
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/program.h"
#include "schema/semantics/cost_model.h"

namespace pp {

struct Prediction;  // simulate.h

// What a device waits for. If the cause were free:
enum class Cause : uint8_t {
  kDependence,  // what others compute first: nothing but another schedule removes it
  kMessage,     // the time of a message, to its arrival: messages take no time
  kChannel,     // one that was sent behind others: each message has a channel of its own
  kLink,        // a link that other messages and reductions share: each channel has its own
  kRendezvous,  // the end of a SEND in its place: SENDs and RECVs in the background
  kBuffer,      // memory that is not free yet, here or at the receiver: enough of it
  kReduction,   // gradients or weights of replicas: reductions take no time
  kCollective,  // the norm, or the tied embedding's gradients: nobody waits for them
};
inline constexpr std::array<std::string_view, 8> kCauses = {
    "dependence", "message", "channel", "link", "rendezvous", "buffer", "reduction", "collective"};
using ByCause = std::array<double, kCauses.size()>;

struct Idle {
  double warm_up = 0;  // before the first compute instruction that takes time
  ByCause gaps{};      // between the first and the last
  double drain = 0;    // after the last one
  double Sum() const { return warm_up + drain + std::accumulate(gaps.begin(), gaps.end(), 0.0); }
};

// An instruction that the makespan depends on: from its start to that of the next one, which waited
// for it. Together they tile the time from 0 to the makespan.
struct PathStep {
  int32_t device, index;  // in Unrolled(program)
  Instruction instruction;
  double start, end;
};

struct Why {
  // By device. If steps overlap, of the second body, in the steady state, without a warm-up.
  std::vector<Idle> idle;
  // The makespan less the makespan without the cause, 0 for dependences; on shared links it may be
  // negative, since a message that comes earlier may delay another one.
  ByCause saved{};
  // To the last instruction; if steps overlap, to the end of the second body.
  std::vector<PathStep> critical_path;
};

// REQUIRES: `prediction` is that of `program` with these costs.
Result<Why> Explain(const Program& program, const CostModel& costs, const Prediction& prediction);

}  // namespace pp
