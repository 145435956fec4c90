// V-Half and V-Min (Qi et al., 2024, "Pipeline Parallelism with Controllable Memory", section 4):
// stages lie in a V, and a micro-batch's forwards and input halves stand in a building block that
// repeats every six slots. How long the block keeps an activation on a device decides the memory.
//
// In slots, on device i of p, for micro-batch 0 (m comes 6m later):
//
//             F down   F up       I up          I down
//   V-Half    2i       3p-2-i     3p-1+t+2i     6p-2+t-i     t = 3 for even p, else 0
//   V-Min     i        2p-1-i     2p+t+i        4p-1+t-i     t = 2 for p divisible by 3, else 0
//
// The two slots of each six that are left take the weight halves, oldest first. Only the order
// counts: a device does not wait for its slot.
#include <algorithm>

#include "compiler/scheme.h"

namespace pp {
namespace {

constexpr int kPeriod = 6;

struct Block {
  int f_down, f_up, i_up, i_down;
};

void Repeat(const Shape& shape, int device, Row& row, const Block& block) {
  const int down = device, up = 2 * shape.devices - 1 - device;
  enum What { kFDown, kFUp, kIUp, kIDown };
  std::vector<std::pair<int64_t, What>> slots;
  for (int m = 0; m < shape.microbatches; ++m) {
    const int64_t begin = int64_t{kPeriod} * m;
    slots.push_back({begin + block.f_down, kFDown});
    slots.push_back({begin + block.f_up, kFUp});
    slots.push_back({begin + block.i_up, kIUp});
    slots.push_back({begin + block.i_down, kIDown});
  }
  std::sort(slots.begin(), slots.end());
  int64_t now = 0;
  for (const auto& [time, what] : slots) {
    for (; now < time && row.HasW(); ++now) row.W();
    now = time + 1;
    switch (what) {
      case kFDown:
        row.F(down);
        break;
      case kFUp:
        row.F(up);
        break;
      case kIUp:
        row.I(up);
        break;
      case kIDown:
        row.I(down);
        break;
    }
  }
  while (row.HasW()) row.W();
}

}  // namespace

void VHalf(const Shape& shape, int i, Row& row) {
  const int p = shape.devices, t = p % 2 == 0 ? 3 : 0;
  Repeat(shape, i, row, {2 * i, 3 * p - 2 - i, 3 * p - 1 + t + 2 * i, 6 * p - 2 + t - i});
}

void VMin(const Shape& shape, int i, Row& row) {
  const int p = shape.devices, t = p % 3 == 0 ? 2 : 0;
  Repeat(shape, i, row, {i, 2 * p - 1 - i, 2 * p + t + i, 4 * p - 1 + t - i});
}

}  // namespace pp
