// PipeDream (Narayanan et al., 2019) and PipeDream-2BW (Narayanan et al., 2021): 1F1B that never
// drains.
//
// A device keeps the weights that a forward used until its backward is over, so that the
// pipeline need not wait for an optimizer step. A version v is v updates older than the newest.
//
// pipedream steps after every backward; a forward takes the newest weights, and its backward the
// same ones, by then D-1-d updates older: D-d versions.
// pipedream-2bw steps after M backwards; step k uses the weights after k-1 updates: two versions.
//
// A body is one step (M micro-batches); what it runs ahead belongs to the next one (0' is its
// first micro-batch).
//
//   D = 2, M = 3, the body; v1 are the weights of the update before
//   d0 | F1  B0 v1 STEP  F2  B1 v1 STEP  F0' B2 v1 STEP
//   d1 | F0  B0    STEP  F1  B1    STEP  F2  B2    STEP
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
