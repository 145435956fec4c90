// The least makespan of one device alone, beside all orders of tasks that belong to named cells, in
// groups that random numbers made: nothing is taken as alike there.
#include "compiler/search/one_device.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

namespace pp::search {
namespace {

struct Cell {
  const Group* group;
  enum { kNew, kDropped, kFull, kHalf, kOver } state = kNew;
  bool recomputed = false;
  double ready = 0;
};

int64_t HeldBy(const Cell& cell) {
  const Held& held = cell.group->held;
  switch (cell.state) {
    case Cell::kDropped:
      return held.dropped;
    case Cell::kFull:
      return cell.recomputed ? held.recomputed : held.forward;
    case Cell::kHalf:
      return cell.recomputed ? held.recomputed_half : held.input_half;
    default:
      return 0;
  }
}

// Each next task of each cell in turn, and what follows it.
class AllOrders {
 public:
  AllOrders(const std::vector<Group>& groups, int64_t limit) : limit_(limit) {
    for (const Group& group : groups) cells_.insert(cells_.end(), group.count, {&group});
  }
  double Run() {
    Try(0, 0);
    return least_;
  }

 private:
  void Try(double now, double reached) {
    if (std::max(now, reached) >= least_) return;
    bool over = true;
    for (Cell& cell : cells_) {
      const Cell before = cell;
      const Group& g = *cell.group;
      const auto go_on = [&](double end, double after) {
        int64_t held = 0;
        for (const Cell& each : cells_)
          held += &each == &cell ? std::max(HeldBy(before), HeldBy(cell)) : HeldBy(each);
        if (held <= limit_) Try(end, std::max(reached, after));
        cell = before;
      };
      over = over && cell.state == Cell::kOver;
      if (cell.state == Cell::kNew) {
        const double begin = std::max(now, g.head);
        for (const auto state : {Cell::kDropped, Cell::kFull}) {
          cell.state = state;
          cell.ready = begin + g.residence - g.b;
          go_on(begin + g.f, 0);
        }
      } else if (cell.state == Cell::kDropped) {
        cell.state = Cell::kFull;
        cell.recomputed = true;
        go_on(now + g.r, 0);
      } else if (cell.state == Cell::kFull) {
        cell.state = g.split ? Cell::kHalf : Cell::kOver;
        const double end = std::max(now, before.ready) + g.b;
        go_on(end, end + g.tail);
      } else if (cell.state == Cell::kHalf) {
        cell.state = Cell::kOver;
        go_on(now + g.w, 0);
      }
    }
    if (over) least_ = std::max(now, reached);
  }

  const int64_t limit_;
  std::vector<Cell> cells_;
  double least_ = HUGE_VAL;
};

std::vector<Group> RandomGroups(std::mt19937& random) {
  const auto number = [&](int most) {
    return static_cast<int>(random() % static_cast<unsigned>(most + 1));
  };
  std::vector<Group> groups(1 + number(1));
  for (Group& g : groups) {
    g = {.count = groups.size() == 1 ? 3
                  : &g == &groups[0] ? 1
                                     : 1 + number(1),
         .f = 1.0 + number(2),
         .r = 1.0 + number(2),
         .b = 1.0 + number(3),
         .w = 0,
         .head = 0.5 * number(8),
         .tail = 0.5 * number(8),
         .residence = 0,
         .held = {.forward = 6 + number(6), .dropped = number(6)},
         .split = number(1) == 1};
    g.residence = g.f + g.b + number(10);
    g.held.recomputed = g.held.forward + number(g.held.dropped);
    if (!g.split) continue;
    g.w = 1.0 + number(2);
    g.held.input_half = number(static_cast<int>(g.held.forward) + 2);
    g.held.recomputed_half = number(static_cast<int>(g.held.recomputed) + 2);
  }
  return groups;
}

TEST_CASE("no order of one device's tasks is faster, and one is as fast") {
  std::mt19937 random(1);
  int slowed = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::vector<Group> groups = RandomGroups(random);
    const int64_t limit = 14 + static_cast<int64_t>(random() % 30);
    const double least = AllOrders(groups, limit).Run();
    INFO(i);
    if (least == HUGE_VAL) continue;
    CHECK(OneDevice(groups, limit, 1'000'000) == least);
    slowed += OneDevice(groups, 1'000, 1'000'000) < least;
  }
  CHECK(slowed > 500);
}

TEST_CASE("less work proves less, and nothing wrong") {
  std::mt19937 random(2);
  int less = 0;
  for (int i = 0; i < 20; ++i) {
    std::vector<Group> groups = RandomGroups(random);
    for (Group& group : groups) group.count = 5;
    const int64_t limit = 20 + static_cast<int64_t>(random() % 40);
    const double makespan = OneDevice(groups, limit, 10'000'000);
    double before = 0;
    for (const int64_t work : {10, 100, 1'000, 10'000}) {
      const double bound = OneDevice(groups, limit, work);
      CHECK(bound >= before);
      CHECK(bound <= makespan);
      less += bound < makespan;
      before = bound;
    }
  }
  CHECK(less > 8);
}

}  // namespace
}  // namespace pp::search
