// V-Half and V-Min (Qi et al., 2024, "Pipeline Parallelism with Controllable Memory", section 4):
// stages are placed in a V, and a micro-batch's forwards and input halves form a building block
// that repeats every six slots. How long the block keeps an activation on a device determines the
// memory.
//
// In slots, on device i of p, for micro-batch 0 (m comes 6m later):
//
//             F down  F up      I up         I down      most stages alive
//   V-Half    2i      3p-2-i    3p-1+t+2i    6p-2+t-i    2 floor((p+2)/2)     t = 3 for even p
//   V-Min     i       2p-1-i    2p+t+i       4p-1+t-i    2 floor((p+4)/3)     t = 2 if 3 divides p
//
// (t = 0 otherwise.) That is the order of forwards and input halves. A device runs its oldest
// weight half when it would wait, or when the next forward would be one alive too many.
//
//   V-Half, D = 2, M = 2; 3F0 is the forward of stage 3 on micro-batch 0
//   d0 | 0F0   .   . 3F0 0F1 3I0 3W0 3F1   . 0I0 3I1 0W0 3W1 0I1 0W1
//   d1 |   . 1F0 2F0   .   . 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 2W1 1W1
#include <algorithm>
#include <tuple>

#include "compiler/scheme.h"

namespace pp {
namespace {

struct Block {
  int f_down, f_up, i_up, i_down;
};

// Simulates the lists in slots of one forward, one input half or one weight half.
class Player {
 public:
  Player(const Shape& shape, std::span<Row> rows, int most_alive)
      : shape_(shape), rows_(rows), most_alive_(most_alive), places_(shape.devices) {
    end_.assign(size_t{4} * shape.devices * shape.microbatches, -1);
  }

  // The order of a device: its block every six slots.
  void Repeat(int device, const Block& block) {
    constexpr int64_t kPeriod = 6;
    const int down = device, up = 2 * shape_.devices - 1 - device;
    std::vector<std::pair<int64_t, Task>> slots;
    for (int m = 0; m < shape_.microbatches; ++m) {
      slots.push_back({kPeriod * m + block.f_down, {false, down, m}});
      slots.push_back({kPeriod * m + block.f_up, {false, up, m}});
      slots.push_back({kPeriod * m + block.i_up, {true, up, m}});
      slots.push_back({kPeriod * m + block.i_down, {true, down, m}});
    }
    std::sort(slots.begin(), slots.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& slot : slots) places_[device].order.push_back(slot.second);
  }

  void Run() {
    while (true) {
      int device = -1;
      int64_t start = INT64_MAX;
      for (int d = 0; d < shape_.devices; ++d)
        if (const int64_t ready = StartOf(places_[d]); ready < start) device = d, start = ready;
      if (device < 0) break;
      Step(places_[device], rows_[device], start);
    }
    for (Row& row : rows_)
      while (row.HasW()) row.W();
  }

 private:
  struct Task {
    bool backward;
    int stage, micro;
  };
  struct Place {
    std::vector<Task> order;
    size_t next = 0;
    int64_t time = 0;
    int alive = 0;
  };

  int64_t& EndOf(bool backward, int stage, int micro) {
    return end_[(static_cast<size_t>(backward) * shape_.stages() + stage) * shape_.microbatches +
                micro];
  }

  // When its next task can start; never, while what it waits for is not timed.
  int64_t StartOf(const Place& place) {
    if (place.next == place.order.size()) return INT64_MAX;
    const Task& task = place.order[place.next];
    if (!task.backward && task.stage == 0) return place.time;
    const int last = shape_.stages() - 1;
    const int64_t ready = !task.backward       ? EndOf(false, task.stage - 1, task.micro)
                          : task.stage == last ? EndOf(false, last, task.micro)
                                               : EndOf(true, task.stage + 1, task.micro);
    return ready < 0 ? INT64_MAX : std::max(place.time, ready);
  }

  // The next task, or a weight half before it.
  void Step(Place& place, Row& row, int64_t start) {
    const Task& task = place.order[place.next];
    const bool full = !task.backward && place.alive == most_alive_;
    if (row.HasW() && (full || start > place.time)) {
      row.W();
      --place.alive;
      ++place.time;
      return;
    }
    if (task.backward) {
      row.I(task.stage);
    } else {
      row.F(task.stage);
      ++place.alive;
    }
    EndOf(task.backward, task.stage, task.micro) = place.time = start + 1;
    ++place.next;
  }

  const Shape& shape_;
  std::span<Row> rows_;
  const int most_alive_;
  std::vector<Place> places_;
  std::vector<int64_t> end_;  // by direction, stage and micro-batch; -1: not timed yet
};

}  // namespace

void VHalf(const Shape& shape, std::span<Row> rows) {
  const int p = shape.devices, t = p % 2 == 0 ? 3 : 0;
  Player player(shape, rows, 2 * ((p + 2) / 2));
  for (int i = 0; i < p; ++i)
    player.Repeat(i, {2 * i, 3 * p - 2 - i, 3 * p - 1 + t + 2 * i, 6 * p - 2 + t - i});
  player.Run();
}

void VMin(const Shape& shape, std::span<Row> rows) {
  const int p = shape.devices, t = p % 3 == 0 ? 2 : 0;
  Player player(shape, rows, 2 * ((p + 4) / 3));
  for (int i = 0; i < p; ++i)
    player.Repeat(i, {i, 2 * p - 1 - i, 2 * p + t + i, 4 * p - 1 + t - i});
  player.Run();
}

}  // namespace pp
