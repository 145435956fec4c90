#include "runtime/run/host_bytes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/comm/shm_segment.h"
#include "runtime/comm/topology.h"
#include "runtime/plan/bind_collective.h"
#include "schema/model/layout.h"
#include "schema/model/workspace.h"

namespace pp {
namespace {

// As measured with MPICH 4.0, without what the processes of a host have in common (code, and MPI's
// shared memory), and of a further rank in the same process: its stacks and lists.
constexpr int64_t kProcess = 6 << 20, kThread = 1 << 20;
// Of a record, as checkpoints are written (states.cc).
constexpr int64_t kRecord = 16 << 20;

int64_t LargestTensor(const Program& program, int device) {
  int64_t largest = 0;
  for (const int stage : program.StagesOf(device))
    for (const Tensor& tensor : LayoutStage(*program.job, stage).tensors)
      largest = std::max(largest, tensor.bytes());
  return largest;
}

// In how many ways the rank sends: channels to peers.
int64_t SendsOf(const Program& program, int rank) {
  const Topology topology = TopologyOf(program);
  const Place place = topology.PlaceOf(rank);
  std::set<std::pair<Channel, int>> sends;
  const auto add = [&](Channel channel, const Group& peers) {
    for (const int peer : peers)
      if (peer != rank) sends.insert({channel, peer});
  };
  Group all(topology.ranks());
  for (int other = 0; other < topology.ranks(); ++other) all[other] = other;
  add(Channel::kControl, rank == 0 ? all : Group{0});
  add(Channel::kPhase, rank == 0 ? all : Group{0});
  add(Channel::kPeers, topology.PeersOf(place));
  const DeviceList& list = program.lists[place.device];
  for (const auto* instructions : {&list.body, &list.evaluation})
    for (const Instruction& i : *instructions) {
      if (i.op == Op::kSendAct || i.op == Op::kSendGrad) {
        const Channel channel = i.op == Op::kSendAct ? Channel::kAct : Channel::kGrad;
        add(channel, {topology.RankOf({place.replica, i.peer, place.index})});
      } else if (i.op == Op::kReduceNorm) {
        add(Channel::kReduce, all);
      } else if (i.op == Op::kReduceTied) {
        for (const int stage : {0, program.stages - 1})
          add(Channel::kReduce, CopiesOf(program, topology, stage, place.index));
      } else if (Info(i.op).lane == Lane::kReduce) {
        add(Channel::kReduce, CopiesOf(program, topology, i.stage, place.index));
      }
    }
  return static_cast<int64_t>(sends.size());
}

}  // namespace

int64_t HostBytesOf(const Program& program, int rank, const HostBytesArgs& args) {
  const int device = TopologyOf(program).PlaceOf(rank).device;
  int64_t bytes = program.lists[device].arena_bytes + LargestTensor(program, device) +
                  (args.threads - 1) * WorkspaceOf(*program.job).kernel_bytes;
  if (args.resumes) bytes += kRecord;
  if (args.processes)
    bytes += SendsOf(program, rank) * ShmChannel::kPieces * ShmChannel::kPieceBytes;
  return bytes + (args.processes || rank == 0 ? kProcess : kThread);
}

}  // namespace pp
