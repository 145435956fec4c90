#include "compiler/machine/network.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace pp {
namespace {

// What each of so many devices of a node, which use its cards at the same time, gets of them; 0: no
// limit.
double LaneOf(const Machine& machine, int64_t active) {
  const double alone = machine.between.bandwidth;
  const double card = machine.card > 0 ? machine.card : alone;
  if (machine.cards == 0 || card == 0) return alone;
  const double share = machine.cards * card / static_cast<double>(active);
  return alone > 0 ? std::min(alone, share) : share;
}

// Replicas that are looked at, where they do not repeat.
constexpr int kMostSeen = 4096;

int64_t NodeOf(const Machine& machine, int64_t rank) {
  return machine.node > 0 ? rank / machine.node : 0;
}

}  // namespace

GroupShape ShapeOf(const Machine& machine, const std::vector<int64_t>& ranks) {
  std::map<int64_t, int64_t> members;  // by node
  for (const int64_t rank : ranks) ++members[NodeOf(machine, rank)];
  GroupShape shape{.members = static_cast<int64_t>(ranks.size()),
                   .nodes = static_cast<int64_t>(members.size()),
                   .on_node = static_cast<int64_t>(ranks.size())};
  for (const auto& [node, count] : members) shape.on_node = std::min(shape.on_node, count);
  return shape;
}

GroupShape ShapeOfCopies(const Machine& machine, const Topology& topology,
                         const std::vector<int>& devices) {
  const bool repeats = machine.node > 0 && topology.replicas % machine.node == 0;
  const int seen = machine.node == 0 ? 1
                   : repeats         ? machine.node
                                     : std::min(topology.replicas, kMostSeen);
  std::vector<int64_t> ranks;
  for (int replica = 0; replica < seen; ++replica)
    for (const int device : devices)
      ranks.push_back(topology.RankOf({.replica = replica, .device = device}));
  GroupShape shape = ShapeOf(machine, ranks);
  shape.members = static_cast<int64_t>(devices.size()) * topology.replicas;
  if (machine.node == 0) {
    shape.on_node = shape.members;
  } else {
    shape.nodes = (shape.nodes * topology.replicas + seen - 1) / seen;
  }
  return shape;
}

double CollectiveSeconds(const Machine& machine, Collective collective, const GroupShape& shape,
                         int64_t ranks, double bytes, int64_t pieces) {
  if (shape.members <= 1 || bytes == 0) return 0;
  const auto members = static_cast<double>(shape.members), nodes = static_cast<double>(shape.nodes);
  double inside = machine.inside.bandwidth;
  if (const double links = machine.pair * static_cast<double>(shape.on_node - 1); links > 0)
    inside = inside > 0 ? std::min(inside, links) : links;
  double seconds_per_byte = inside > 0 && shape.on_node > 1 ? 1 / inside : 0;
  double ring = members * machine.inside.latency, tree = 0;
  if (shape.nodes > 1) {
    const int64_t active = std::min<int64_t>(machine.node, ranks);
    const double lane = LaneOf(machine, active);
    if (lane > 0)
      seconds_per_byte =
          std::max(seconds_per_byte, 1 / (lane * static_cast<double>(shape.on_node)));
    ring = (members - nodes) * machine.inside.latency + nodes * machine.between.latency;
    tree = std::ceil(std::log2(nodes)) * machine.between.latency;
  }
  ring *= (members - 1) / members;
  tree += static_cast<double>(shape.on_node - 1) * machine.inside.latency;
  // NCCL's halves have trees (PAT) where each node has one member.
  const bool trees = collective == Collective::kAllReduce || shape.on_node == 1;
  const double latency = trees ? std::min(ring, tree) : ring;
  return 2 * ((members - 1) / members * bytes * seconds_per_byte +
              static_cast<double>(pieces) * latency);
}

Link LinkBetween(const Machine& machine, int64_t rank, int64_t other, int64_t active) {
  if (NodeOf(machine, rank) == NodeOf(machine, other))
    return {machine.pair > 0 ? machine.pair : machine.inside.bandwidth, machine.inside.latency};
  return {LaneOf(machine, std::max<int64_t>(1, active)), machine.between.latency};
}

}  // namespace pp
