#include "schema/nccl/queues.h"

#include <map>

namespace pp::nccl {

DeviceUse MostUsed(const Assignment& assignment, StreamPer stream_per) {
  std::map<int, DeviceUse> uses;
  for (const Communicator& one : assignment.communicators)
    for (const int32_t device : one.devices) {
      DeviceUse& use = uses[device];
      ++use.communicators;
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
