// The table of schemes. To add one: a file under schemes/, a declaration in scheme.h,
// a row here.
#include <fmt/format.h>

#include <algorithm>

#include "compiler/scheme.h"

namespace pp {
namespace {

Status AnySize(const Shape&) { return {}; }

constexpr Scheme kSchemes[] = {
    {"gpipe", "all forwards, then all backwards", 1, true, false, AnySize, GPipe},
    {"1f1b", "one forward, one backward (PipeDream-Flush)", 1, true, false, AnySize, OneFOneB},
    {"interleaved", "1F1B with V stages a device", 2, false, true, CheckInterleaved, Interleaved},
};

// A plan cannot hold more than FlatBuffers' 2 GiB; about ten instructions come of one
// forward and its backward.
constexpr int64_t kMostForwards = 6'000'000;

}  // namespace

std::span<const Scheme> Schemes() { return kSchemes; }

Result<Program> BuildSchedule(const std::string& name, Shape shape) {
  const auto scheme = std::find_if(std::begin(kSchemes), std::end(kSchemes),
                                   [&](const Scheme& row) { return row.name == name; });
  if (scheme == std::end(kSchemes)) {
    std::string names;
    for (const Scheme& row : kSchemes)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    return Status::Invalid(fmt::format("--scheme: unknown scheme '{}' ({})", name, names));
  }
  if (shape.stages_per_device == 0) shape.stages_per_device = scheme->stages_per_device;
  if (scheme->fixed && shape.stages_per_device != scheme->stages_per_device)
    return Status::Invalid(fmt::format("--stages-per-device: {} ({} has {})",
                                       shape.stages_per_device, name, scheme->stages_per_device));
  if (shape.group_size > 0 && !scheme->has_groups)
    return Status::Invalid(
        fmt::format("--group-size: {} ({} has no groups)", shape.group_size, name));
  const __int128 forwards = __int128{shape.devices} * shape.stages_per_device * shape.microbatches;
  if (forwards > kMostForwards)
    return Status::Invalid(fmt::format(
        "--devices {} --microbatches {}: {} forwards (at most {}, to stay within the 2 GiB of a "
        "plan)",
        shape.devices, shape.microbatches,
        forwards > INT64_MAX ? "more than 2^63" : fmt::format("{}", static_cast<int64_t>(forwards)),
        kMostForwards));
  PP_RETURN_IF_ERROR(scheme->check(shape));

  Program program;
  program.scheme = name;
  program.devices = shape.devices;
  program.stages = shape.stages();
  program.microbatches = shape.microbatches;
  program.pipe_of.assign(shape.microbatches, 0);
  Pipe& pipe = program.pipes.emplace_back();
  for (int s = 0; s < program.stages; ++s) pipe.device_of.push_back(s % shape.devices);
  program.lists.resize(shape.devices);
  for (int device = 0; device < shape.devices; ++device) {
    Row row(shape, &program.lists[device].body);
    scheme->fill(shape, device, row);
  }
  return program;
}

}  // namespace pp
