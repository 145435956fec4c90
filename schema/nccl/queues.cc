#include "schema/nccl/queues.h"

#include <algorithm>
#include <map>
#include <set>

namespace pp::nccl {

namespace {

// At most: a reduction connects a rank with all of its group, which here counts as all ranks.
int64_t PeersOf(const Communicator& one, int device, const Ranks& ranks) {
  if (one.key.use == Use::kPeers) return ranks.tp - 1;
  std::set<int32_t> others;
  for (const Flow& flow : one.flows)
    if (std::find(flow.members.begin(), flow.members.end(), device) != flow.members.end())
      others.insert(flow.members.begin(), flow.members.end());
  const auto members = static_cast<int64_t>(others.size());
  if (one.key.use == Use::kMessages) return members - 1;
  return std::max<int64_t>(1, members) * ranks.of_device - 1;
}

}  // namespace

DeviceUse MostUsed(const Assignment& assignment, StreamPer stream_per, const Ranks& ranks) {
  std::map<int, DeviceUse> uses;
  for (const Communicator& one : assignment.communicators)
    for (const int32_t device : one.devices) {
      DeviceUse& use = uses[device];
      ++use.communicators;
      use.peers += PeersOf(one, device, ranks);
      // Ascending by key, so that those of the peers come last.
      if (stream_per == StreamPer::kCommunicator || one.key.use == Use::kPeers || use.streams == 0)
        ++use.streams;
    }
  DeviceUse most;
  for (auto& [device, use] : uses) {
    use.device = device;
    if (use.Queues() > most.Queues()) most = use;
  }
  return most;
}

}  // namespace pp::nccl
