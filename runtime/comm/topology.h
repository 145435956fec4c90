// Who is who: rank = (replica * D + device) * tp + index (Narayanan et al., 2021, section 3).
// Tensor-parallel peers are neighbours, as they communicate most; then come the devices of a
// pipeline.
#pragma once

#include <vector>

#include "schema/program.h"

namespace pp {

// The position of a rank.
struct Place {
  int replica = 0;
  int device = 0;
  int index = 0;  // among its tensor-parallel peers
  bool operator==(const Place&) const = default;
};

// An ordered set of ranks that take part in a collective. Sums are taken in this order.
using Group = std::vector<int>;

struct Topology {
  int replicas = 1;
  int devices = 1;
  int tp = 1;

  int ranks() const { return replicas * devices * tp; }
  int RankOf(const Place& place) const {
    return (place.replica * devices + place.device) * tp + place.index;
  }
  Place PlaceOf(int rank) const {
    return {.replica = rank / (devices * tp), .device = rank / tp % devices, .index = rank % tp};
  }
  // The tensor-parallel peers there, in the order of their indices.
  Group PeersOf(const Place& place) const {
    Group peers;
    for (int at = 0; at < tp; ++at) peers.push_back(RankOf({place.replica, place.device, at}));
    return peers;
  }
};

inline Topology TopologyOf(const Program& program) {
  return {.replicas = program.replicas,
          .devices = program.devices,
          .tp = program.job ? program.job->tp : 1};
}

}  // namespace pp
