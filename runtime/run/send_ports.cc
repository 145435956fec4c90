#include "runtime/run/send_ports.h"

#include <set>
#include <utility>

#include "runtime/plan/bind_collective.h"
#include "schema/routines.h"
#include "schema/topology.h"

namespace pp {

std::vector<Port> SendPorts(const Program& program, int rank) {
  const Topology topology = TopologyOf(program);
  const Place place = topology.PlaceOf(rank);
  std::set<std::pair<Channel, int>> sends;
  const auto add = [&](Channel channel, const Group& peers) {
    for (const int peer : peers)
      if (peer != rank) sends.insert({channel, peer});
  };
  const Group all = topology.AllRanks();
  add(Channel::kControl, rank == 0 ? all : Group{0});
  add(Channel::kPhase, rank == 0 ? all : Group{0});
  add(Channel::kPeers, topology.PeersOf(place));
  ForEachList(program.lists[place.device], [&](const std::vector<Instruction>& instructions) {
    for (const Instruction& i : instructions) {
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
  });
  std::vector<Port> ports;
  for (const auto& [channel, peer] : sends) ports.push_back({Way::kSend, channel, peer});
  return ports;
}

}  // namespace pp
