// What NCCL really guarantees, and whether a plan is safe with it: its messages, its collectives,
// and both beside each other.
//
//   order         the operations of a communicator have one order on all its ranks: the plain proof
//                 (verify.h) has checked it of messages and of collectives
//   streams       a send, a receive or a collective blocks its stream until it is matched; all
//                 streams together with the compute lanes' waits have no cycle         play/play.h
//   groups        operations of one group progress together                         play/streams.h
//   stalls        nothing waits only for its place in a stream, within a step, from one step to the
//                 next, or from one evaluation to the next                                stalls.h
//   creation      a communicator is made by all its members together                    creation.h
//   kernels       no more of them run at once on a device than fit                      play/play.h
//   queues        none is held up by another stream in its hardware queue                 queues.h
//
// That is proved of the devices of one replica and one tensor-parallel index, and holds for all
// ranks. Replicas and peers have the lists of their device, so whatever a rank's operation waits
// for on another rank, that operation's device waits for on the other one's, or it is the same
// instruction of that device: a cycle of ranks would be a cycle of devices. The sums of
// tensor-parallel peers are such waits: the k-th sum of a compute instruction is that of each peer,
// in a stream of their own, which the compute lane alone fills, in list order. What remains to
// prove of them is that their kernels find room: they count under kernels and queues.
//
// Between two routines a device waits until nothing is under way (runner.h in runtime/plan/):
// nothing of the one is queued behind the other there.
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
#include "schema/nccl/queues.h"
#include "schema/proof/verify.h"

namespace pp::nccl {

// When communicators are created: before the first step, in the same order on all ranks, as our
// runtime does; or at their first use.
enum class Creation : uint8_t { kBefore, kFirstUse };

struct Terms {
  std::optional<Sharing> sharing;  // of all messages; none: the fewest communicators that suffice
  Groups groups = Groups::kNone;   // only with a sharing
  StreamPer stream_per = StreamPer::kCommunicator;  // kDevice: only with a sharing
  Creation creation = Creation::kBefore;
  int kernels = 0;           // of NCCL, that a device runs at once; 0: one for each stream
  int queues = kMostQueues;  // of a device: CUDA_DEVICE_MAX_CONNECTIONS
};

// What a runtime needs for the plan.
struct Needs {
  Assignment assignment;             // of the devices of one replica and one tensor-parallel index
  Sharings sharings;                 // which says the same of any traffic between the devices
  DeviceUse most;                    // of the device that needs the most hardware queues
  int64_t peers = 0;                 // of the rank that has the most (MostPeers)
  std::vector<std::string> coarser;  // why each coarser assignment fails
};

// REQUIRES: Verify has passed `program` with kPlan.
// Error: "3 communicators, each for a pair of devices: deadlock: device 0 '...' ... (6
// communicators, each for one direction of a pair of devices: safe and free of stalls)".
Result<Needs> Prove(const Program& program, const Terms& terms);

}  // namespace pp::nccl
