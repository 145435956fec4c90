// ZB-H1 and ZB-H2 (Qi et al., 2024, "Zero Bubble Pipeline Parallelism", section 3).
//
// A backward is split into its input half I, which the previous stage waits for, and its weight
// half W, which nothing waits for and which fills bubbles. H1 runs ahead as far as 1F1B and delays
// W by d micro-batches, so that every device holds D; H2 runs ahead further, until no device waits
// between its first forward and its last W, and holds 2D-1.
//
//   D = 2, M = 4, I and W as long as F
//   zb-h1
//   d0 | F0 F1  . I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
//   d1 |  . F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
//   zb-h2
//   d0 | F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3  .
//   d1 |  . F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
#include <fmt/format.h>

#include <algorithm>

#include "compiler/scheme.h"

namespace pp {
namespace {

// Runs `ahead` forwards ahead, and each W `behind` backwards after its I.
void Fill(const Shape& shape, int device, Row& row, int ahead, int behind) {
  ahead = std::min(ahead, shape.microbatches);
  for (int i = 0; i < ahead; ++i) row.F(device);
  for (int i = 0; i < shape.microbatches; ++i) {
    if (ahead + i < shape.microbatches) row.F(device);
    row.I(device);
    if (i >= behind) row.W();
  }
  while (row.HasW()) row.W();
}

}  // namespace

void ZbH1(const Shape& shape, int device, Row& row) {
  Fill(shape, device, row, shape.devices - 1 - device, device);
}

Status CheckZbH2(const Shape& shape) {
  if (shape.microbatches >= 2 * shape.devices - 1) return {};
  return Status::Invalid(fmt::format("--microbatches: {} (zb-h2 with {} devices: at least {})",
                                     shape.microbatches, shape.devices, 2 * shape.devices - 1));
}

void ZbH2(const Shape& shape, int device, Row& row) {
  Fill(shape, device, row, 2 * (shape.devices - device) - 2, 2 * device);
}

}  // namespace pp
