// Which NCCL communicators a rank has, and what goes over each: the assignment that the plan's
// proof has found (schema/nccl/prove.h), in ranks instead of devices.
//
//   messages     as the proof says: one for all devices of a pipeline, for two devices, for one
//                direction between them, or for act or grad in it; replicas and tensor-parallel
//                peers have their own
//   reductions   one for all ranks: a rank takes part in one reduction at a time (lanes.h)
//   peers        one for the tensor-parallel peers of a device
#pragma once

#include <span>
#include <vector>

#include "runtime/comm/links.h"
#include "runtime/comm/topology.h"
#include "schema/nccl/communicators.h"
#include "schema/program.h"

namespace pp {

// Those that the rank is a member of, in an order that all ranks share: creating them one after the
// other never waits in a cycle. `reductions`: the groups of those that the rank takes part in,
// whose members it has ports to. REQUIRES: `program` has all lists.
std::vector<RankCommunicator> CommunicatorsOf(const Program& program,
                                              const nccl::Sharings& sharings, int rank,
                                              std::span<const Group> reductions);

}  // namespace pp
