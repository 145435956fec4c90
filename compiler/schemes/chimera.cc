// Chimera (Li and Hoefler, 2021).
//
// Two pipes over the same devices in opposite directions, so that each fills the other's bubble. A
// unit has D micro-batches, half of them for each pipe; a pipe takes one in every second slot.
// Micro-batch j of a pipe passes stage s forwards in slot 2j + s and backwards in slot 2j + 2D-1 -
// s. As D is even, no two share a slot of a device. Further units follow when the first micro-batch
// has left stage 0, 2D slots later (direct concatenation).
//
// With f pipe pairs (--pipe-pairs), pair i starts at device iD/f, and each of the 2f pipes takes
// D/2f micro-batches of a unit. If two then share a slot, the forward goes first, then the lower
// stage.
//
// That is the order; a device starts as early as it can.
//
//   D = M = 4, F and B equally long; micro-batches 0 and 1 run down, 2 and 3 up
//   d0 | F0 F1  . F2 B2 F3 B3 B0  . B1
//   d1 |  . F0 F2 F1 F3 B2 B0 B3 B1  .
//   d2 |  . F2 F0 F3 F1 B0 B2 B1 B3  .
//   d3 | F2 F3  . F0 B0 F1 B1 B2  . B3
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "compiler/scheme.h"

namespace pp {

Status CheckChimera(const Shape& shape) {
  const int pairs = shape.pipe_pairs, half = shape.devices / 2;
  if (shape.devices % 2 != 0)
    return Status::Invalid(fmt::format("--devices: {} (chimera: an even number)", shape.devices));
  if (pairs < 1 || half % pairs != 0)
    return Status::Invalid(fmt::format("--pipe-pairs: {} with {} devices (a divisor of {})", pairs,
                                       shape.devices, half));
  const int pipes = 2 * pairs;
  if (shape.microbatches % pipes != 0)
    return Status::Invalid(
        fmt::format("--microbatches: {} (chimera with {} pipes: a multiple of {})",
                    shape.microbatches, pipes, pipes));
  return {};
}

void Chimera(const Shape& shape, int, Row& row) {
  struct Slot {
    int64_t time;
    bool backward;
    int stage;
    bool operator<(const Slot& b) const {
      return std::tie(time, backward, stage) < std::tie(b.time, b.backward, b.stage);
    }
  };
  const int depth = shape.devices, pipes = 2 * shape.pipe_pairs;
  std::vector<Slot> slots;
  for (int first = 0; first < shape.microbatches; first += depth) {
    const int of_pipe = std::min(depth, shape.microbatches - first) / pipes;
    const int64_t begin = int64_t{2} * first;
    for (int s : row.stages())
      for (int j = 0; j < of_pipe; ++j) {
        slots.push_back({begin + 2 * j + s, false, s});
        slots.push_back({begin + 2 * j + 2 * depth - 1 - s, true, s});
      }
  }
  std::sort(slots.begin(), slots.end());
  for (const Slot& slot : slots) slot.backward ? row.B(slot.stage) : row.F(slot.stage);
}

}  // namespace pp
