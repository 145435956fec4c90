// Who is who: rank = (replica * D + device) * tp + index (Narayanan et al., 2021, section 3), or
// (device * R + replica) * tp + index. Tensor-parallel peers are neighbours, as they communicate
// most; then come the devices of a pipeline or, in the other order, the replicas.
#pragma once

#include <cstdint>
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
  RankOrder order = RankOrder::kTpPpDp;

  int ranks() const { return replicas * devices * tp; }
  int RankOf(const Place& place) const {
    const int outer = order == RankOrder::kTpPpDp ? place.replica * devices + place.device
                                                  : place.device * replicas + place.replica;
    return outer * tp + place.index;
  }
  Place PlaceOf(int rank) const {
    const int outer = rank / tp, inner = order == RankOrder::kTpPpDp ? devices : replicas;
    const int first = outer / inner, second = outer % inner;
    return order == RankOrder::kTpPpDp
               ? Place{.replica = first, .device = second, .index = rank % tp}
               : Place{.replica = second, .device = first, .index = rank % tp};
  }
  // The tensor-parallel peers there, in the order of their indices.
  Group PeersOf(const Place& place) const {
    Group peers;
    for (int at = 0; at < tp; ++at) peers.push_back(RankOf({place.replica, place.device, at}));
    return peers;
  }
  // The ranks of a replica by device and index, and all ranks, replica by replica: what is added up
  // in this order has the same bits however ranks are numbered.
  Group RanksOf(int replica) const {
    Group all;
    for (int device = 0; device < devices; ++device)
      for (const int rank : PeersOf({.replica = replica, .device = device})) all.push_back(rank);
    return all;
  }
  Group AllRanks() const {
    Group all;
    for (int replica = 0; replica < replicas; ++replica)
      for (const int rank : RanksOf(replica)) all.push_back(rank);
    return all;
  }
};

inline Topology TopologyOf(const Program& program) {
  return {.replicas = program.replicas,
          .devices = program.devices,
          .tp = program.job ? program.job->tp : 1,
          .order = program.rank_order};
}

}  // namespace pp
