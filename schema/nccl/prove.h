// What NCCL really promises, and whether a plan is safe with it.
//
//   streams       a send or receive blocks its stream until it is matched        streams.h, play.h
//   groups        operations of one group progress together                      streams.h
//   stalls        nobody waits only for its place in a stream                    stalls.h
//   creation      a communicator is made by all its members together             creation.h
//   kernels       not more of them at once on a device than fit                  play.h
//   collectives   those of one communicator have one order on all its ranks; the plain proof
//                 (verify.h) has seen to that
//
// A plan leaves open which communicator carries which message. Without a wish the answer is the
// coarsest assignment that is safe and free of stalls; with one, whether it is that. The finest,
// one for each flow, is always free of stalls, as the plain proof plays it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schema/nccl/streams.h"
#include "schema/status.h"
#include "schema/verify.h"

namespace pp {

// When communicators are made: before the first step, in one order on all ranks, as our runtime
// does; or at their first use.
enum class Creation : uint8_t { kBefore, kFirstUse };

struct NcclTerms {
  std::optional<Communicators> communicators;  // the coarsest that will do
  Groups groups = Groups::kNone;
  Creation creation = Creation::kBefore;
  // Kernels of NCCL that a device runs at once. 8 is CUDA's default number of hardware queues
  // (CUDA_DEVICE_MAX_CONNECTIONS, at most 32).
  int kernels = 8;
};

struct NcclNeeds {
  Communicators communicators = Communicators::kAll;
  int messages = 0, collectives = 0;  // communicators, of one replica's devices
  int kernels = 0;                    // the most that a device may run at once
  std::vector<std::string> coarser;   // why each coarser assignment will not do
};

// REQUIRES: Verify has passed `program` with kPlan, and `waits_for` is what it found.
// Error: "one per pair of devices: deadlock: device 0 '...' ... (2 communicators, one per pair of
// devices and direction, are safe and free of stalls)".
Result<NcclNeeds> ProveNccl(const Program& program, const std::vector<WaitsFor>& waits_for,
                            const NcclTerms& terms);

}  // namespace pp
