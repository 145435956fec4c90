// Which NCCL communicators a rank has, and what goes over each: those that the plan's proof has
// proved (schema/nccl/communicators.h), in ranks instead of devices. That for messages has the
// devices' ranks of one replica and tensor-parallel index; that for reductions has all ranks, as a
// rank takes part in one at a time (lanes.h).
#pragma once

#include <span>
#include <vector>

#include "runtime/comm/links.h"
#include "schema/nccl/communicators.h"
#include "schema/program.h"
#include "schema/topology.h"

namespace pp {

// Those that the rank is a member of, in an order that all ranks share: creating them one after the
// other never waits in a cycle. `reductions`: the groups of those that the rank takes part in,
// whose members it has ports to. REQUIRES: `program` has all lists.
std::vector<RankCommunicator> CommunicatorsOf(const Program& program,
                                              const nccl::Sharings& sharings, int rank,
                                              std::span<const Group> reductions);

// The others that they connect the rank with, counted once for each communicator.
int CountPeers(std::span<const RankCommunicator> communicators);

}  // namespace pp
