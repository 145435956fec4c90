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
// weight half when it would wait, or when the next forward would be one alive too many
// (play/ideal.h).
//
//   V-Half, D = 2, M = 2; 3F0 is the forward of stage 3 on micro-batch 0
//   d0 | 0F0   .   . 3F0 0F1 3I0 3W0 3F1   . 0I0 3I1 0W0 3W1 0I1 0W1
//   d1 |   . 1F0 2F0   .   . 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 2W1 1W1
#include <algorithm>

#include "compiler/play/ideal.h"
#include "compiler/scheme.h"

namespace pp {
namespace {

struct Block {
  int f_down, f_up, i_up, i_down;
};

// The order of a device's forwards and input halves: its block every six slots.
void Repeat(const Shape& shape, int device, const Block& block, Row& row) {
  constexpr int64_t kPeriod = 6;
  const int down = device, up = 2 * shape.devices - 1 - device;
  enum What { kFDown, kFUp, kIUp, kIDown };
  std::vector<std::pair<int64_t, What>> slots;
  for (int64_t begin = 0; begin < kPeriod * shape.microbatches; begin += kPeriod) {
    slots.push_back({begin + block.f_down, kFDown});
    slots.push_back({begin + block.f_up, kFUp});
    slots.push_back({begin + block.i_up, kIUp});
    slots.push_back({begin + block.i_down, kIDown});
  }
  std::sort(slots.begin(), slots.end());
  for (const auto& [slot, what] : slots) {
    const int stage = what == kFDown || what == kIDown ? down : up;
    what == kFDown || what == kFUp ? row.F(stage) : row.I(stage);
  }
}

// Adds the weight halves, on a timeline in slots: each of the two stages of a device takes half of
// these costs.
void AddWeights(int most_alive, Program& program) {
  const Durations slots(CostModel{.f = {2}, .bi = {2}, .bw = {2}}, program);
  auto filled = FillWeights(program, FindMessages(program), slots, {most_alive, 0});
  PP_CHECK(filled.ok());
  for (int d = 0; d < program.devices; ++d) program.lists[d].body = std::move(filled->lists[d]);
}

}  // namespace

void VHalf(const Shape& shape, int i, Row& row) {
  const int p = shape.devices, t = p % 2 == 0 ? 3 : 0;
  Repeat(shape, i, {2 * i, 3 * p - 2 - i, 3 * p - 1 + t + 2 * i, 6 * p - 2 + t - i}, row);
}
void VHalfWeights(const Shape& shape, Program& program) {
  AddWeights(2 * ((shape.devices + 2) / 2), program);
}

void VMin(const Shape& shape, int i, Row& row) {
  const int p = shape.devices, t = p % 3 == 0 ? 2 : 0;
  Repeat(shape, i, {i, 2 * p - 1 - i, 2 * p + t + i, 4 * p - 1 + t - i}, row);
}
void VMinWeights(const Shape& shape, Program& program) {
  AddWeights(2 * ((shape.devices + 4) / 3), program);
}

}  // namespace pp
