// The communicators of an executor that has one for each set of members, as the process groups of
// torch.distributed are: those of messages as proved (prove.h), and one for each set of devices
// whose collectives are over the same replicas.
//
// The proof has all collectives of a device in one stream, in list order, as our runtime has. In
// several, each of them waits for no more than there: what is safe there is safe here. But it takes
// more streams and queues.
#pragma once

#include <cstdint>
#include <vector>

#include "schema/nccl/communicators.h"
#include "schema/nccl/queues.h"
#include "schema/program.h"
#include "schema/semantics/collectives.h"

namespace pp::nccl {

struct ProcessGroups {
  Assignment assignment;
  // By communicator: whether it has the devices' ranks of all replicas, rather than of one.
  std::vector<bool> over_replicas;
  std::vector<Collective> collectives;  // in an order that has each device's
  std::vector<int32_t> of_collective;   // its communicator; -1: its only rank needs none
  // All communicators: those of a round have no device in common, so that they can be made
  // together, and rounds one after the other by all ranks.
  std::vector<std::vector<int32_t>> rounds;
  DeviceUse most;  // of the device that needs the most hardware queues
};

ProcessGroups ProcessGroupsOf(const Program& program, const Sharings& sharings,
                              StreamPer stream_per);

}  // namespace pp::nccl
