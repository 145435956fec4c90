// The table of schemes. To add one: a file under schemes/, a declaration in scheme.h,
// a row here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "compiler/scheme.h"
#include "schema/base/nearest.h"
#include "schema/sections.h"

namespace pp {
namespace {

Status AnySize(const Shape&) { return {}; }

using enum StageMap;
using S = Scheme;

// clang-format off
constexpr Scheme kSchemes[] = {
    // name, summary, needs, V, whether it may be another, map, option, check, fill, finish
    {"gpipe", "all forwards, then all backwards",
     "", 1, S::kFixed, kLoop, S::kAnyMap, AnySize, GPipe, nullptr},
    {"1f1b", "one forward, one backward (PipeDream-Flush)",
     "", 1, S::kFixed, kLoop, S::kNone, AnySize, OneFOneB, nullptr},
    {"interleaved", "1F1B with V stages per device",
     "M a multiple of D unless in other groups", 2, S::kFree, kLoop, S::kGroups,
     CheckInterleaved, Interleaved, nullptr},
    {"chimera", "one or more pairs of pipes in opposite directions",
     "D even, M a multiple of twice the pairs", 1, S::kFixed, kBoth, S::kPipePairs,
     CheckChimera, Chimera, nullptr},
    {"fold-aiao", "all in, all out: V segments per device, each reduced while the next one runs",
     "M >= D", 2, S::kFree, kLoop, S::kNone, CheckFoldAiao, FoldAiao, nullptr},
    {"fold-fifo", "interleaved 1F1B, V segments per device, reduced in the cool-down",
     "M a multiple of D", 2, S::kFree, kLoop, S::kNone, CheckFoldFifo, FoldFifo, nullptr},
    {"pipedream", "1F1B without a flush; a step per micro-batch, up to D versions of the weights",
     "M >= D", 1, S::kFixed, kLoop, S::kNone, CheckPipeDream, PipeDream, nullptr},
    {"pipedream-2bw", "1F1B without a flush; two versions of the weights",
     "M >= D", 1, S::kFixed, kLoop, S::kNone, CheckPipeDream, PipeDream2BW, nullptr},
    {"zb-h1", "a third of 1F1B's bubble; each device holds as many activations as 1F1B's first",
     "", 1, S::kFixed, kLoop, S::kNone, AnySize, ZbH1, nullptr},
    {"zb-h2", "zero bubble with almost twice the memory of 1F1B",
     "M >= 2 D - 1", 1, S::kFixed, kLoop, S::kNone, CheckZbH2, ZbH2, nullptr},
    {"zb-v", "zero bubble in a V; each device holds as many activations as 1F1B's first",
     "", 2, S::kFixed, kSnake, S::kNone, AnySize, ZbV, nullptr},
    {"v-half", "zero bubble in a V with about half the memory of 1F1B",
     "", 2, S::kFixed, kSnake, S::kNone, AnySize, VHalf, VHalfWeights},
    {"v-min", "zero bubble in a V with about a third of the memory of 1F1B",
     "", 2, S::kFixed, kSnake, S::kNone, AnySize, VMin, VMinWeights},
    {"hanayo", "waves: V/2 times down and up the devices",
     "V even", 2, S::kFree, kSnake, S::kAnyMap, CheckHanayo, nullptr, Hanayo},
    {"dualpipe", "two pipes in opposite directions, forward and backward overlapped",
     "D and M even, M >= 2 D", 1, S::kFixed, kBoth, S::kNone, CheckDualPipe, DualPipe, nullptr},
    {"dualpipe-v", "one half of DualPipe, its two stages per device in a V",
     "M >= 2 D", 2, S::kFixed, kSnake, S::kNone, CheckDualPipeV, DualPipeV, nullptr},
};
// clang-format on

// A plan cannot hold more than FlatBuffers' 2 GiB; about ten instructions of at most 46 bytes come
// of one forward and its backward.
constexpr int64_t kMostForwards = 4'500'000;

Result<const Scheme*> FindScheme(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Scheme& row : kSchemes) {
    if (row.name == name) return &row;
    names.push_back(row.name);
  }
  return Status::Invalid(fmt::format("--scheme: unknown scheme '{}' ({}{})", Shown(name),
                                     DidYouMean(name, names), fmt::join(names, ", ")));
}

// That the shape has no option that the scheme lacks, and is not too large.
Status CheckShape(const Scheme& scheme, const Shape& shape) {
  if (scheme.parts == Scheme::kFixed && shape.stages_per_device != scheme.stages_per_device)
    return Status::Invalid(fmt::format("--stages-per-device: {} ({} has {})",
                                       shape.stages_per_device, scheme.name,
                                       scheme.stages_per_device));
  if (shape.group_size > 0 && scheme.option != Scheme::kGroups)
    return Status::Invalid(
        fmt::format("--group-size: {} ({} has no groups)", shape.group_size, scheme.name));
  if (shape.pipe_pairs != 1 && scheme.option != Scheme::kPipePairs)
    return Status::Invalid(
        fmt::format("--pipe-pairs: {} ({} has none)", shape.pipe_pairs, scheme.name));
  const __int128 stages = shape.device_of.empty()
                              ? __int128{shape.devices} * shape.stages_per_device
                              : shape.device_of.size();
  const __int128 forwards = stages * shape.microbatches;
  if (forwards > kMostForwards)
    return Status::Invalid(fmt::format(
        "--devices {} --microbatches {}: {} forwards (at most {}, to stay within the 2 GiB of a "
        "plan)",
        shape.devices, shape.microbatches,
        forwards > INT64_MAX ? "more than 2^63" : fmt::format("{}", static_cast<int64_t>(forwards)),
        kMostForwards));
  return scheme.check(shape);
}

// The device of stage s in pipe p.
int DeviceOf(const Scheme& scheme, const Shape& shape, int p, int s) {
  const int devices = shape.devices;
  switch (scheme.map) {
    case kLoop:
      return s % devices;
    case kSnake:
      return s / devices % 2 == 0 ? s % devices : devices - 1 - s % devices;
    case kBoth: {
      // Pipe pair p/2 starts at device p/2 * D/f; its second pipe runs the other way.
      const int start = p / 2 * (devices / shape.pipe_pairs);
      return ((p % 2 == 0 ? s : devices - 1 - s) + start) % devices;
    }
  }
  return 0;
}

// Which pipe a micro-batch takes: of each unit of D, every pipe takes an equal share.
std::vector<int32_t> PipesOfMicros(const Shape& shape, int pipes) {
  std::vector<int32_t> pipe_of;
  for (int m = 0; m < shape.microbatches; ++m) {
    const int unit = m / shape.devices * shape.devices;
    const int size = std::min(shape.devices, shape.microbatches - unit);
    pipe_of.push_back(pipes == 1 ? 0 : (m - unit) / std::max(1, size / pipes));
  }
  return pipe_of;
}

// Places the devices of a program as `wanted` says, which must equal its own stage map except for
// the devices' numbers.
Status Renumber(const std::vector<int>& wanted, Program& program) {
  const std::vector<int32_t>& own = program.pipes[0].device_of;
  std::vector<int> number(program.devices, -1), from(program.devices, -1);
  bool fits = wanted.size() == own.size();
  for (size_t s = 0; s < own.size() && fits; ++s) {
    int &to = number[own[s]], &back = from[wanted[s]];
    if (to < 0 && back < 0) to = wanted[s], back = own[s];
    fits = to == wanted[s] && back == own[s];
  }
  if (!fits)
    return Status::Invalid(
        fmt::format("--stage-map: {} ({} places its stages as {}, on devices of any "
                    "order)",
                    fmt::join(wanted, ","), program.scheme, fmt::join(own, ",")));
  for (Pipe& pipe : program.pipes)
    for (int32_t& device : pipe.device_of) device = number[device];
  std::vector<DeviceList> lists(program.devices);
  for (int d = 0; d < program.devices; ++d) lists[number[d]] = std::move(program.lists[d]);
  program.lists = std::move(lists);
  return {};
}

// That every device has a stage, and no other device is named; and as many as V says, if it is
// given.
Status CheckStageMap(const Shape& shape) {
  if (shape.stages_per_device > 0 &&
      int64_t{shape.devices} * shape.stages_per_device != std::ssize(shape.device_of))
    return Status::Invalid(fmt::format("--stage-map: {} stages ({} devices with {} each)",
                                       shape.device_of.size(), shape.devices,
                                       shape.stages_per_device));
  if (std::ssize(shape.device_of) < shape.devices)
    return Status::Invalid(fmt::format("--stage-map: {} stages for {} devices (at least one each)",
                                       shape.device_of.size(), shape.devices));
  std::vector<bool> used(shape.devices, false);
  for (int device : shape.device_of) {
    if (device >= shape.devices)
      return Status::Invalid(
          fmt::format("--stage-map: device {} (0 to {})", device, shape.devices - 1));
    used[device] = true;
  }
  const auto idle = std::find(used.begin(), used.end(), false);
  if (idle == used.end()) return {};
  return Status::Invalid(fmt::format("--stage-map: device {} has no stage (every one needs one)",
                                     idle - used.begin()));
}

// Empty lists, with the stages on the devices that the scheme gives them; `shape` gets what it
// leaves to the scheme.
Result<Program> Place(const Scheme& scheme, Shape& shape) {
  if (!shape.device_of.empty()) PP_RETURN_IF_ERROR(CheckStageMap(shape));
  if (shape.stages_per_device == 0) shape.stages_per_device = scheme.stages_per_device;
  if (scheme.option != Scheme::kAnyMap) shape.device_of.clear();
  PP_RETURN_IF_ERROR(CheckShape(scheme, shape));

  Program program;
  program.scheme = scheme.name;
  program.devices = shape.devices;
  program.stages = shape.stages();
  program.microbatches = shape.microbatches;
  program.pipes.resize(scheme.map == kBoth ? 2 * shape.pipe_pairs : 1);
  for (size_t p = 0; p < program.pipes.size(); ++p)
    for (int s = 0; s < program.stages; ++s)
      program.pipes[p].device_of.push_back(shape.device_of.empty()
                                               ? DeviceOf(scheme, shape, static_cast<int>(p), s)
                                               : shape.device_of[s]);
  program.pipe_of = PipesOfMicros(shape, static_cast<int>(program.pipes.size()));
  program.lists.resize(shape.devices);
  return program;
}

}  // namespace

std::span<const Scheme> Schemes() { return kSchemes; }

Result<Program> BuildPlacement(const std::string& name, Shape shape) {
  const auto scheme = FindScheme(name);
  if (!scheme.ok()) return scheme.status();
  const std::vector<int> wanted = shape.device_of;
  auto program = Place(**scheme, shape);
  if (program.ok() && !wanted.empty() && shape.device_of.empty())
    PP_RETURN_IF_ERROR(Renumber(wanted, *program));
  return program;
}

Result<Program> BuildSchedule(const std::string& name, Shape shape) {
  const auto found = FindScheme(name);
  if (!found.ok()) return found.status();
  const Scheme& scheme = **found;
  const std::vector<int> wanted = shape.device_of;
  auto placed = Place(scheme, shape);
  if (!placed.ok()) return placed.status();
  Program program = std::move(*placed);
  const Placement placement(program);
  for (int d = 0; d < shape.devices && scheme.fill != nullptr; ++d) {
    Row row(&program, placement, d);
    scheme.fill(shape, d, row);
  }
  if (scheme.finish != nullptr) scheme.finish(shape, program);
  AddLoads(program);
  if (!wanted.empty() && shape.device_of.empty()) PP_RETURN_IF_ERROR(Renumber(wanted, program));
  program.overlaps =
      std::any_of(program.lists.begin(), program.lists.end(), [&](const DeviceList& list) {
        return std::any_of(list.body.begin(), list.body.end(),
                           [&](const Instruction& i) { return i.micro >= program.microbatches; });
      });
  return program;
}

Status VisitLists(const Scheme& scheme, Shape shape,
                  const std::function<void(int device, const std::vector<Instruction>&)>& visit) {
  auto program = Place(scheme, shape);
  PP_RETURN_IF_ERROR(program.status());
  const Placement placement(*program);
  std::vector<Instruction> list;
  for (int d = 0; d < shape.devices; ++d) {
    std::swap(list, program->lists[d].body);
    Row row(&*program, placement, d);
    scheme.fill(shape, d, row);
    std::swap(list, program->lists[d].body);
    visit(d, list);
    list.clear();
  }
  return {};
}

}  // namespace pp
