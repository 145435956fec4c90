#include "schema/nccl/queues.h"

#include <algorithm>
#include <map>
#include <set>

namespace pp::nccl {

namespace {

// Ranks of one replica and tensor-parallel index that a device's reductions of gradients and
// weights connect it with, itself included: the copies of its stages, and of tied ones.
std::set<int32_t> CopiesAround(const Program& program, int device) {
  std::set<int32_t> devices;
  const std::vector<int32_t> tied = program.TiedStages();
  for (int stage = 0; stage < program.stages; ++stage) {
    const auto holds = [&](const Pipe& pipe) { return pipe.device_of[stage] == device; };
    if (std::none_of(program.pipes.begin(), program.pipes.end(), holds)) continue;
    for (const Pipe& pipe : program.pipes) {
      devices.insert(pipe.device_of[stage]);
      if (!program.IsTied(stage)) continue;
      for (const int32_t other : tied) devices.insert(pipe.device_of[other]);
    }
  }
  return devices;
}

int64_t ReductionPeers(const Program& program, int device) {
  const int64_t tp = program.job ? program.job->tp : 1, replicas = program.replicas;
  const auto copies = static_cast<int64_t>(CopiesAround(program, device).size());
  if (!program.clip) return copies * replicas - 1;
  // The norm's blocks, from all ranks of a replica, or of all, whose shards have them.
  const int64_t replica = program.devices * tp;
  const bool sharded = program.zero == 1 && program.Copies() > 1;
  return sharded ? replica * replicas - 1 : replica + copies * (replicas - 1) - 1;
}

int64_t MessagePeers(const Communicator& one, int device) {
  std::set<int32_t> others;
  for (const Flow& flow : one.flows)
    if (std::find(flow.members.begin(), flow.members.end(), device) != flow.members.end())
      others.insert(flow.members.begin(), flow.members.end());
  return static_cast<int64_t>(others.size()) - 1;
}

}  // namespace

int64_t MostPeers(const Program& program, const Assignment& assignment) {
  std::map<int, int64_t> peers;
  for (const Communicator& one : assignment.communicators)
    for (const int32_t device : one.devices)
      peers[device] += one.key.use == Use::kMessages     ? MessagePeers(one, device)
                       : one.key.use == Use::kReductions ? ReductionPeers(program, device)
                                                         : program.job->tp - 1;
  int64_t most = 0;
  for (const auto& [device, count] : peers) most = std::max(most, count);
  return most;
}

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
