// PipeDream (Narayanan et al., 2019) and PipeDream-2BW (Narayanan et al., 2021): 1F1B that never
// drains.
//
// A device keeps the weights that a forward used until its backward is over, so that the
// pipeline need not wait for an optimizer step. Version v is v updates older than the newest.
//
// pipedream steps after every backward; a forward takes the newest weights, and its backward the
// same ones, by then D-1-d updates older: D-d versions.
// pipedream-2bw steps after M backwards; step k, counted from 0, uses the weights after k-1
// updates (the first two the first ones): two versions.
//
// A body is M micro-batches; what it runs ahead belongs to the next body, such as m2 on d0 below,
// which is the next body's m0.
//
//   D = 2, M = 2; prologue, two bodies, epilogue
//   d0 | F0 F1  .  . B0 -- F2 B1 -- F3 B2 -- F4 B3 -- F5 B4 --  . B5 --
//   d1 |  . F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 -- F4 B4 -- F5 B5 --  .  .
//
//   pipedream, body of d0       pipedream-2bw
//     FW        s0 m1 v0          FW        s0 m1 v1
//     BW        s0 m0 v1          BW        s0 m0 v1
//     STEP      s0 v0             FW        s0 m2 v0
//     FW        s0 m2 v0          BW        s0 m1 v1
//     BW        s0 m1 v1          STEP      s0 v0
//     STEP      s0 v0
#include <fmt/format.h>

#include "compiler/scheme.h"

namespace pp {

Status CheckPipeDream(const Shape& shape) {
  if (shape.microbatches >= shape.devices) return {};
  return Status::Invalid(
      fmt::format("--microbatches: {} (without a flush: at least as many as the {} devices)",
                  shape.microbatches, shape.devices));
}

void PipeDream(const Shape& shape, int device, Row& row) {
  const int ahead = shape.devices - 1 - device;
  for (int i = 0; i < shape.microbatches; ++i) {
    row.F(device, ahead + i).version = 0;
    row.B(device, i).version = static_cast<int16_t>(ahead);
    row.Step(device);
  }
}

void PipeDream2BW(const Shape& shape, int device, Row& row) {
  const int ahead = shape.devices - 1 - device;
  for (int i = 0; i < shape.microbatches; ++i) {
    const bool of_next_step = ahead + i >= shape.microbatches;
    row.F(device, ahead + i).version = of_next_step ? 0 : 1;
    row.B(device, i).version = 1;
  }
  row.Step(device);
}

}  // namespace pp
