// What NCCL really guarantees, and whether a plan is safe with it.
//
//   streams       a send or receive blocks its stream until it is matched     play/play.h
//   groups        operations of one group progress together                play/streams.h
//   stalls        nothing waits only for its place in a stream                   stalls.h
//   creation      a communicator is made by all its members together           creation.h
//   kernels       no more of them run at once on a device than fit            play/play.h
//   collectives   those of one communicator have the same order on all its ranks; the plain proof
//                 (verify.h) has checked that
//
// A plan leaves open which communicator carries which message. Unless the user specifies it, the
// answer is the fewest communicators that are safe and free of stalls: one for all messages, or
// else one for each pair of devices, or else one for each of its directions, or else one for each
// kind of value. Whether one of them is free of stalls does not depend on the others (stalls.h), so
// each pair has as few as it can. The finest, one for each flow, always is: the plain proof has
// played it. If the user specifies it, the answer is whether that is safe and free of stalls.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schema/base/status.h"
#include "schema/nccl/communicators.h"
#include "schema/proof/verify.h"

namespace pp::nccl {

// When communicators are created: before the first step, in the same order on all ranks, as our
// runtime does; or at their first use.
enum class Creation : uint8_t { kBefore, kFirstUse };

struct Terms {
  std::optional<Sharing> sharing;  // of all messages; none: the fewest communicators that suffice
  Groups groups = Groups::kNone;   // only with a sharing
  Creation creation = Creation::kBefore;
  // Kernels of NCCL that a device runs at once: CUDA has at most 32 hardware queues
  // (CUDA_DEVICE_MAX_CONNECTIONS; 8 by default), and one of them is for computing.
  int kernels = 31;
};

// What a runtime needs for the plan.
struct Needs {
  std::vector<Flow> flows;           // what the assignment assigns
  Assignment assignment;             // of the devices of one replica and one tensor-parallel index
  Sharings sharings;                 // which says the same of any traffic between the devices
  int kernels = 0;                   // the most that a device may run at once
  std::vector<std::string> coarser;  // why each coarser assignment fails
};

// REQUIRES: Verify has passed `program` with kPlan, and `waits_for` is what it found.
// Error: "3 communicators, each for a pair of devices: deadlock: device 0 '...' ... (6
// communicators, each for one direction of a pair of devices: safe and free of stalls)".
Result<Needs> Prove(const Program& program, const std::vector<WaitsFor>& waits_for,
                    const Terms& terms);

}  // namespace pp::nccl
