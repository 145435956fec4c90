// What a group of ranks gets of a machine's links: nodes whose devices are connected inside, and
// network cards that a node's devices share.
//
//   node 0   d d d d d d d d      inside: of each device, to any other of its node
//            | | | | | | | |
//            c c c c c c c c      cards: of the node, whichever device uses them
//            ===== between =====
//
// A collective of N ranks moves 2 (N - 1) / N of its bytes through each rank's link inside (where
// each pair of devices has its own, through those to the group's others) and, of as many rings as
// cards, through the node's cards (NCCL's rings and trees; Thakur et al., 2005).
// All devices of a node work alike, so that the groups of one kind share its cards: a group with k
// ranks on a node has k lanes, each the node's cards over its devices, and never more than a device
// may use alone. Its latency is a ring's, a step from each rank to the next, or a tree's: by nodes,
// and a chain within them.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/machine/machine.h"
#include "schema/topology.h"

namespace pp {

// How a group lies in the nodes of a machine.
struct GroupShape {
  int64_t members = 1;
  int64_t nodes = 1;    // that have members
  int64_t on_node = 1;  // the fewest members on one of them
};
// REQUIRES: `ranks` is not empty; they differ.
GroupShape ShapeOf(const Machine& machine, const std::vector<int64_t>& ranks);
// Of the ranks that hold a copy of a stage on one of `devices`, of one tensor-parallel index.
// Of a multiple of as many replicas as a node has devices only the first such part is looked at:
// others lie alike. Of others not more than some thousands.
GroupShape ShapeOfCopies(const Machine& machine, const Topology& topology,
                         const std::vector<int>& devices);

enum class Collective : uint8_t {
  kAllReduce,
  kScatterAndGather,  // the same in its two halves, which have trees for one member on a node
};
// Of `bytes` in so many pieces, one after the other, in seconds. `ranks`: of the run, in all.
double CollectiveSeconds(const Machine& machine, Collective collective, const GroupShape& shape,
                         int64_t ranks, double bytes, int64_t pieces = 1);

// What a message from one rank to another crosses, while `active` devices of its node send, too.
Link LinkBetween(const Machine& machine, int64_t rank, int64_t other, int64_t active);

}  // namespace pp
