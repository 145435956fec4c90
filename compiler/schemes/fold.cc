// Fold3D's two orders (Li et al., 2023; AscendSpeed's "aiao" and "fifo"). A device holds V
// segments, stage c*D + d being segment c of device d.
//
// All in, all out: every micro-batch passes segment 0, then every one segment 1 ...; then back.
// When a segment's last backward is over, the reduction of its gradients starts and can overlap the
// whole backward of the next segment.
//
// Fifo: interleaved 1F1B with the same reductions (with M = D, all forwards run first). A segment
// is complete only in the cool-down, so there is less to overlap with, but it needs less memory.
//
//   fold-aiao, D = 2, V = 2, M = 2; 3F0 is the forward of stage 3 on micro-batch 0
//   d0 | 0F0 0F1 2F0 2F1   .   .   . 2B0 --- 2B1 --- 0B0 --- 0B1 ---
//   d1 |   . 1F0 1F1 3F0 3F1 3B0 --- 3B1 --- 1B0 --- 1B1 ---   .   .
//
// Where a reduction starts: at the first backward of the next segment, after the wait for that
// backward's gradient and before running it. On d0, with several replicas:
//
//   BW        s2 m1
//   WAIT      grad s0 m0
//   REDUCE_grad s2 b0
//   BW        s0 m0
#include <fmt/format.h>

#include <algorithm>

#include "compiler/scheme.h"

namespace pp {
namespace {

// The backward of segment c on a micro-batch. Segment c + 1 is complete at the first of the last
// group.
void Backward(const Shape& shape, int device, Row& row, int c, int micro, int group) {
  const int stage = c * shape.devices + device;
  if (c + 1 < shape.stages_per_device && micro == shape.microbatches - group)
    row.Reduce(stage + shape.devices, stage, micro);
  row.B(stage, micro);
}

}  // namespace

Status CheckFoldAiao(const Shape& shape) {
  if (shape.microbatches >= shape.devices) return {};
  return Status::Invalid(
      fmt::format("--microbatches: {} (fold-aiao: at least as many as the {} devices)",
                  shape.microbatches, shape.devices));
}

void FoldAiao(const Shape& shape, int device, Row& row) {
  const int segments = shape.stages_per_device;
  for (int c = 0; c < segments; ++c)
    for (int m = 0; m < shape.microbatches; ++m) row.F(c * shape.devices + device);
  for (int c = segments - 1; c >= 0; --c)
    for (int m = 0; m < shape.microbatches; ++m)
      Backward(shape, device, row, c, m, shape.microbatches);
}

Status CheckFoldFifo(const Shape& shape) {
  const int rest = shape.microbatches % shape.devices;
  if (rest == 0) return {};
  const int below = shape.microbatches - rest;
  return Status::Invalid(
      fmt::format("--microbatches: {} (fold-fifo: a multiple of the {} devices, as {})",
                  shape.microbatches, shape.devices,
                  below > 0 ? fmt::format("{} or {}", below, below + shape.devices)
                            : fmt::format("{}", shape.devices)));
}

void FoldFifo(const Shape& shape, int device, Row& row) {
  const int depth = shape.devices, segments = shape.stages_per_device;
  const int steps = shape.microbatches * segments;
  // Micro-batches in groups of D, a group through all segments.
  auto micro = [&](int k) { return k / (depth * segments) * depth + k % depth; };
  auto segment = [&](int k) { return k / depth % segments; };
  auto forward = [&](int k) { row.F(segment(k) * depth + device, micro(k)); };
  auto backward = [&](int k) {
    Backward(shape, device, row, segments - 1 - segment(k), micro(k), depth);
  };
  const int ahead = shape.microbatches == depth
                        ? steps
                        : std::min(2 * (depth - 1 - device) + (segments - 1) * depth, steps);
  for (int k = 0; k < ahead; ++k) forward(k);
  for (int k = ahead; k < steps; ++k) forward(k), backward(k - ahead);
  for (int k = steps - ahead; k < steps; ++k) backward(k);
}

}  // namespace pp
