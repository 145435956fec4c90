// What a group of ranks gets of a machine's links, by where it lies.
#include "compiler/machine/network.h"

#include <catch2/catch.hpp>
#include <vector>

namespace pp {
namespace {

// Nodes of four; inside 100 bytes per second, between 10 a device, four cards of 10 a node.
Machine Nodes() {
  return {.node = 4, .inside = {100, 1e-3}, .between = {10, 1e-1}, .cards = 4, .card = 10};
}

TEST_CASE("a group's shape is what nodes it has members on") {
  const Machine machine = Nodes();
  const GroupShape shape = ShapeOf(machine, {0, 1, 4, 5, 8, 9});
  CHECK(shape.members == 6);
  CHECK(shape.nodes == 3);
  CHECK(shape.on_node == 2);
  CHECK(ShapeOf(machine, {0, 1, 2, 4}).on_node == 1);  // the fewest
}

// Every layout of small runs against the ranks themselves.
TEST_CASE("shapes of copies are those of their ranks") {
  for (const RankOrder order : {RankOrder::kTpPpDp, RankOrder::kTpDpPp})
    for (const int replicas : {1, 2, 3, 4, 6, 8, 16})
      for (const int devices : {1, 2, 3, 4})
        for (const int tp : {1, 2, 4}) {
          const Topology topology{replicas, devices, tp, order};
          const Machine machine = Nodes();
          std::vector<std::vector<int>> all = {{0}, {devices - 1}};
          if (devices > 1) all.push_back({0, devices - 1});  // two pipes
          for (const std::vector<int>& holders : all) {
            std::vector<int64_t> ranks;
            for (int r = 0; r < replicas; ++r)
              for (const int device : holders)
                ranks.push_back(topology.RankOf({.replica = r, .device = device}));
            const GroupShape right = ShapeOf(machine, ranks);
            const GroupShape shape = ShapeOfCopies(machine, topology, holders);
            INFO(replicas << " " << devices << " " << tp << " " << holders.size());
            CHECK(shape.members == right.members);
            CHECK(shape.nodes == right.nodes);
            CHECK(shape.on_node == right.on_node);
          }
        }
}

TEST_CASE("ranks and places are each other's inverse") {
  for (const RankOrder order : {RankOrder::kTpPpDp, RankOrder::kTpDpPp}) {
    const Topology topology{3, 4, 2, order};
    for (int rank = 0; rank < topology.ranks(); ++rank)
      CHECK(topology.RankOf(topology.PlaceOf(rank)) == rank);
    CHECK(topology.PeersOf({.replica = 1, .device = 2}).size() == 2);
    const int next = topology.RankOf({.replica = 0, .device = 1});
    CHECK(next == (order == RankOrder::kTpPpDp ? 2 : 6));
  }
}

double SecondsOf(const Machine& machine, const GroupShape& shape, double bytes,
                 Collective collective = Collective::kAllReduce) {
  return CollectiveSeconds(machine, collective, shape, 16, bytes);
}

TEST_CASE("inside a node a collective takes 2 (n - 1) / n of its bytes and as many steps") {
  CHECK(SecondsOf(Nodes(), {4, 1, 4}, 1000) == Approx(2 * 0.75 * 1000 / 100 + 2 * 3 * 1e-3));
  CHECK(SecondsOf(Nodes(), {1, 1, 1}, 1000) == 0);
  CHECK(SecondsOf(Nodes(), {4, 1, 4}, 0) == 0);
}

TEST_CASE("across nodes it has a lane for each member on a node") {
  // One of each of four nodes: its own card. All of four nodes: all cards.
  Machine machine = Nodes();
  machine.inside.latency = machine.between.latency = 0;
  CHECK(SecondsOf(machine, {4, 4, 1}, 1000) == Approx(2 * 0.75 * 1000 / 10));
  CHECK(SecondsOf(machine, {16, 4, 4}, 1000) == Approx(2 * 15.0 / 16 * 1000 / 40));
  machine.cards = 2;  // shared by four devices
  CHECK(SecondsOf(machine, {4, 4, 1}, 1000) == Approx(2 * 0.75 * 1000 / 5));
  machine.cards = 100;  // more than a device may use
  CHECK(SecondsOf(machine, {4, 4, 1}, 1000) == Approx(2 * 0.75 * 1000 / 10));
  machine.inside.bandwidth = 20;  // slower than the node's cards
  CHECK(SecondsOf(machine, {16, 4, 4}, 1000) == Approx(2 * 15.0 / 16 * 1000 / 20));
}

TEST_CASE("an all-reduce has the latency of the better of a ring and a tree, its halves a ring's") {
  Machine machine = Nodes();
  machine.inside.latency = 0;
  const GroupShape shape{16, 16, 1};
  CHECK(SecondsOf(machine, shape, 1e-9) == Approx(2 * 4 * 0.1).epsilon(1e-6));
  CHECK(SecondsOf(machine, shape, 1e-9, Collective::kScatterAndGather) ==
        Approx(2 * 4 * 0.1).epsilon(1e-6));
  CHECK(SecondsOf(machine, {16, 8, 2}, 1e-9, Collective::kScatterAndGather) ==
        Approx(2 * 15.0 / 16 * 8 * 0.1).epsilon(1e-6));
  CHECK(CollectiveSeconds(machine, Collective::kAllReduce, shape, 16, 1e-9, 3) ==
        Approx(3 * 2 * 4 * 0.1).epsilon(1e-6));
}

TEST_CASE("where each pair has its own link, a group has those to its others") {
  Machine machine = Nodes();
  machine.inside.latency = 0;
  machine.pair = 30;
  CHECK(SecondsOf(machine, {2, 1, 2}, 1000) == Approx(1000.0 / 30));
  CHECK(SecondsOf(machine, {4, 1, 4}, 1000) == Approx(1.5 * 1000 / 90));
  CHECK(LinkBetween(machine, 0, 1, 1).bandwidth == 30);
  CHECK(LinkBetween(machine, 3, 4, 1).bandwidth == 10);
  CHECK(LinkBetween(machine, 3, 4, 4).bandwidth == 10);
  machine.cards = 1;
  CHECK(LinkBetween(machine, 3, 4, 4).bandwidth == 2.5);
}

}  // namespace
}  // namespace pp
