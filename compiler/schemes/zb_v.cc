// ZB-V (Qi et al., 2024, section 6): zero bubble with the memory of 1F1B.
//
// Stages go down the devices and up again, so that a device holds stage d and stage 2D-1-d, and the
// last stage is on the same device as the first. With F, I and W equally long and 2D-1
// micro-batches or more, devices wait only at the two ends.
//
//   D = 2, M = 3; 3F0 is the forward of stage 3 on micro-batch 0
//   d0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2   .
//   d1 |   . 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
#include <algorithm>

#include "compiler/scheme.h"

namespace pp {

void ZbV(const Shape& shape, int device, Row& row) {
  const int depth = shape.devices, d = device;
  const int down = d, up = 2 * depth - 1 - d;
  // The pattern needs 2D-1 micro-batches; with fewer, the others are left out.
  const int micros = std::max(2 * depth - 1, shape.microbatches);
  struct Count {
    int f = 0, i = 0, w = 0;
  };
  Count of_down, of_up;
  auto F = [&](int stage, Count& count) {
    if (const int m = count.f++; m < shape.microbatches) row.F(stage);
  };
  auto I = [&](int stage, Count& count) {
    if (const int m = count.i++; m < shape.microbatches) row.I(stage);
  };
  auto W = [&](int stage, Count& count) {
    if (const int m = count.w++; m < shape.microbatches) row.W(stage);
  };
  for (int k = 0; k < 2 * (depth - d) - 1; ++k) F(down, of_down);
  for (int k = 0; k < d; ++k) F(up, of_up), F(down, of_down);
  for (int k = 0; k < depth - d; ++k) F(up, of_up), I(up, of_up), W(up, of_up);
  while (of_up.f < of_down.f || of_down.f < micros) {
    if (of_down.f < micros) F(down, of_down);
    I(down, of_down), W(down, of_down);
    F(up, of_up), I(up, of_up), W(up, of_up);
  }
  for (int k = 0; k < d; ++k) I(down, of_down), I(up, of_up);
  for (int k = 0; k < depth - d; ++k) I(down, of_down), W(down, of_down);
  while (of_up.w < of_up.i) W(up, of_up);
  while (of_down.w < of_down.i) W(down, of_down);
}

}  // namespace pp
