// Interleaved 1F1B (Narayanan et al., 2021, section 2.2; Megatron-LM's
// microbatch_group_size_per_vp_stage).
//
// A device holds V stages, D apart, so that a micro-batch goes round the devices V times and the
// bubble shrinks to 1/V. Micro-batches go in groups of N: a group passes the device's first stage,
// then its second, and so on; backwards take the stages in reverse. One more forward in flight per
// hop (hence the factor 2) keeps the wrap-around from the last device to the first from stalling.
//
//   D = 2, V = 2, M = 2; 2F1 is the forward of stage 2 on micro-batch 1
//   d0 | 0F0 0F1 2F0 2F1   .   . 2B0 ---   . 2B1 --- 0B0 --- 0B1 ---
//   d1 |   . 1F0 1F1 3F0 3B0 --- 3F1 3B1 --- 1B0 --- 1B1 ---   .   .
#include <fmt/format.h>

#include <algorithm>

#include "compiler/scheme.h"

namespace pp {
namespace {

// Forward number k of a device: which of its V stages, on which micro-batch.
struct Step {
  int part, micro;
};

Step StepOf(const Shape& shape, int group_size, int k) {
  const int64_t in_group = int64_t{group_size} * shape.stages_per_device;
  const int group = static_cast<int>(k / in_group);
  const int first = group * group_size;
  const int size = std::min(group_size, shape.microbatches - first);
  const int rest = static_cast<int>(k - group * in_group);
  return {rest / size, first + rest % size};
}

bool Legal(const Shape& shape, int n) {
  const int rest = shape.microbatches % n;
  return n >= shape.devices && n <= shape.microbatches && (rest == 0 || rest >= shape.devices);
}

}  // namespace

Status CheckInterleaved(const Shape& shape) {
  const int n = shape.group_size > 0 ? shape.group_size : shape.devices;
  if (Legal(shape, n)) return {};
  if (shape.microbatches < shape.devices)
    return Status::Invalid(
        fmt::format("--microbatches: {} (interleaved: at least as many as the {} devices)",
                    shape.microbatches, shape.devices));
  std::string sizes;
  int listed = 0;
  for (int size = shape.devices; size <= shape.microbatches && listed < 8; ++size)
    if (Legal(shape, size)) sizes += fmt::format("{}{}", listed++ > 0 ? ", " : "", size);
  if (listed == 8) sizes += ", …";
  if (shape.group_size > 0)
    return Status::Invalid(fmt::format("--group-size: {} with {} devices and {} micro-batches ({})",
                                       n, shape.devices, shape.microbatches, sizes));
  const int below = shape.microbatches / n * n;
  return Status::Invalid(fmt::format(
      "--microbatches: {} do not go in groups of {} ({} or {} would; or --group-size {})",
      shape.microbatches, n, below, below + n, sizes));
}

void Interleaved(const Shape& shape, int device, Row& row) {
  const int parts = shape.stages_per_device;
  const int group_size = shape.group_size > 0 ? shape.group_size : shape.devices;
  const int steps = shape.microbatches * parts;
  auto forward = [&](int k) {
    const Step step = StepOf(shape, group_size, k);
    row.F(step.part * shape.devices + device, step.micro);
  };
  auto backward = [&](int k) {
    const Step step = StepOf(shape, group_size, k);
    row.B((parts - 1 - step.part) * shape.devices + device, step.micro);
  };
  const int ahead = static_cast<int>(
      std::min<int64_t>(2 * (shape.devices - 1 - device) + int64_t{parts - 1} * group_size, steps));
  for (int k = 0; k < ahead; ++k) forward(k);
  for (int k = ahead; k < steps; ++k) forward(k), backward(k - ahead);
  for (int k = steps - ahead; k < steps; ++k) backward(k);
}

}  // namespace pp
