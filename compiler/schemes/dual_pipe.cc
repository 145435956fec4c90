// DualPipe (DeepSeek-V3 technical report, 2024, section 3.2.1) and DualPipeV (Qi et al., 2025,
// "cut in half": the same order without a second copy of the weights).
//
// A device holds two stages, one near the beginning of the model and one near its end: in DualPipe
// those of two pipes in opposite directions, in DualPipeV those of a V. A forward of one overlaps a
// backward of the other: the pair runs as one, which hides the communication inside. Plain forwards
// fill the pipes before these pairs, plain backwards drain them afterwards; at both ends some
// backwards are split: the input half runs where the next device waits for it, the weight half
// where this device would wait.
//
//   dualpipe, D = 2, M = 4; 0 and 2 run down, 1 and 3 up; F3&B0 runs as one
//   d0 |    F0    F1    F2    B1 ----- F3&B0 ----- -----    B3 -----    I2    W2
//   d1 |    F1    F0    F3    B0 ----- F2&B1 ----- -----    B2 -----    I3    W3
#include <fmt/format.h>

#include "compiler/scheme.h"

namespace pp {
namespace {

// r of R devices, `near` and `far` its stages, M micro-batches in each direction.
void Fill(int r, int devices, int micros, int near, int far, Row& row) {
  const int inner = devices - 1 - r;
  for (int i = 0; i < 2 * inner; ++i) row.F(near);
  for (int i = 0; i <= r; ++i) row.F(near), row.F(far);
  for (int i = 0; i < inner; ++i) row.I(far), row.W(), row.F(far);
  for (int i = 0; i < micros - 2 * devices + r + 1; ++i) {
    // On the innermost device the first two are neighbours with the same micro-batch.
    if (i == 0 && inner == 0) {
      row.F(near), row.B(far);
    } else {
      row.FB(near, far);
    }
    row.FB(far, near);
  }
  for (int i = 0; i < inner; ++i) row.B(far), row.FB(far, near);
  // From half of this phase on, input halves first.
  bool split = false;
  auto backward = [&](int stage) { split ? row.I(stage) : row.B(stage); };
  for (int i = 0; i <= r; ++i) {
    if (i == (r + 1) / 2 && r % 2 == 1) split = true;
    backward(far);
    if (i == (r + 1) / 2 && r % 2 == 0) split = true;
    backward(near);
  }
  for (int i = 0; i < inner; ++i) row.W(), row.I(near);
  while (row.HasW()) row.W();
}

Status CheckMicros(const char* scheme, const Shape& shape) {
  if (shape.microbatches >= 2 * shape.devices) return {};
  return Status::Invalid(fmt::format("--microbatches: {} ({} with {} devices: at least {})",
                                     shape.microbatches, scheme, shape.devices, 2 * shape.devices));
}

}  // namespace

Status CheckDualPipe(const Shape& shape) {
  if (shape.devices % 2 != 0)
    return Status::Invalid(fmt::format("--devices: {} (dualpipe: an even number)", shape.devices));
  if (shape.microbatches % 2 != 0)
    return Status::Invalid(
        fmt::format("--microbatches: {} (dualpipe: an even number)", shape.microbatches));
  return CheckMicros("dualpipe", shape);
}

void DualPipe(const Shape& shape, int device, Row& row) {
  const int mirror = shape.devices - 1 - device;
  const int r = std::min(device, mirror);
  // The pipe that begins in this device's half provides the stage nearer to its beginning.
  Fill(r, shape.devices / 2, shape.microbatches / 2, r, shape.devices - 1 - r, row);
}

Status CheckDualPipeV(const Shape& shape) { return CheckMicros("dualpipe-v", shape); }

void DualPipeV(const Shape& shape, int device, Row& row) {
  Fill(device, shape.devices, shape.microbatches, device, 2 * shape.devices - 1 - device, row);
}

}  // namespace pp
