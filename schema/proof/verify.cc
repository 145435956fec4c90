#include "schema/proof/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "schema/play/execute.h"
#include "schema/routines.h"
#include "schema/sections.h"
#include "schema/semantics/collectives.h"
#include "schema/semantics/regions.h"
#include "schema/text.h"

namespace pp {
namespace {

constexpr const char* kUnrolled = "prologue, 2 bodies, epilogue";

std::string NameOf(const Region& region) {
  std::string name = ToText(Value{region.kind, region.stage});
  return region.pipe < 0 ? name : fmt::format("{} of pipe {}", name, region.pipe);
}

// Regions lie inside the arena without overlap, and are exactly those that the device needs: the
// runtime finds them by name, and believes their sizes.
Status CheckRegions(const Program& program, const Regions& regions_of, int device) {
  const DeviceList& list = program.lists[device];
  std::vector<Region> regions = list.regions;
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.offset < b.offset; });
  int64_t end = 0;
  for (const Region& region : regions) {
    if (region.bytes < 0 || region.offset < end || region.bytes > list.arena_bytes ||
        region.offset > list.arena_bytes - region.bytes)
      return Status::Invalid(fmt::format(
          "{} at bytes {} to {} overlaps another region or the end of the arena at {}",
          NameOf(region), region.offset, region.offset + region.bytes, list.arena_bytes));
    if (program.job && region.offset % kAlign != 0)
      return Status::Invalid(
          fmt::format("{} at byte {} (multiples of {})", NameOf(region), region.offset, kAlign));
    end = region.offset + region.bytes;
  }
  const auto name = [](const Region& r) { return std::tuple(r.kind, r.stage, r.pipe); };
  const auto by_name = [&](const Region& a, const Region& b) { return name(a) < name(b); };
  std::vector<Region> needed = regions_of.On(device);
  std::sort(regions.begin(), regions.end(), by_name);
  std::sort(needed.begin(), needed.end(), by_name);
  const auto [here, need] = std::mismatch(
      regions.begin(), regions.end(), needed.begin(), needed.end(),
      [&](const Region& a, const Region& b) { return name(a) == name(b) && a.bytes == b.bytes; });
  if (here == regions.end() && need == needed.end()) return {};
  if (here == regions.end() || (need != needed.end() && by_name(*need, *here)))
    return Status::Invalid(fmt::format("no region for {} ({} bytes)", NameOf(*need), need->bytes));
  if (need == needed.end() || by_name(*here, *need))
    return Status::Invalid(
        fmt::format("a region of {} bytes for {} (the device needs none, or no second)",
                    here->bytes, NameOf(*here)));
  return Status::Invalid(
      fmt::format("{} has {} bytes ({})", NameOf(*here), here->bytes, need->bytes));
}

// Of all devices, or of one. A routine uses the regions of the steps.
Status CheckAllRegions(const Program& program, Depth depth, int first, int end) {
  if (depth != Depth::kPlan || program.beside) return {};
  const Regions regions(program);
  for (int d = first; d < end; ++d)
    PP_RETURN_IF_ERROR(CheckRegions(program, regions, d).In(fmt::format("device {}", d)));
  return {};
}

// `unrolled` is the program with one list per device: itself, or unrolled.
Status CheckList(const Program& unrolled, const Placement& placement, int device, Depth depth,
                 const ValueBytes& bytes, WaitsFor* waits_for) {
  const std::vector<Instruction>& list = unrolled.lists[device].body;
  WalkArgs args{.depth = depth, .placement = &placement, .waits_for = waits_for};
  if (depth != Depth::kPlan) return WalkList(unrolled, device, list, args);
  MemoryCheck memory(unrolled, device, list);
  args.memory = &memory;
  args.bytes = &bytes;
  return WalkList(unrolled, device, list, args);
}

// Every stage steps equally often.
Status CheckSteps(const Program& program) {
  int64_t all = 0;
  for (int d = 0; d < program.devices; ++d) {
    std::map<std::pair<int, int>, int64_t> steps;  // by stage and pipe
    for (const Instruction& i : program.lists[d].body)
      if (i.op == Op::kStep) ++steps[{i.stage, i.pipe}];
    for (const auto& [copy, count] : steps) {
      if (all == 0) all = count;
      if (count != all)
        return Status::Invalid(
            fmt::format("device {}: stage {} makes {} steps (those before it make {})", d,
                        copy.first, count, all));
    }
  }
  return {};
}

Status CheckLists(const Program& program, const Program& unrolled, Depth depth,
                  std::vector<WaitsFor>* waits_for) {
  const ValueBytes bytes(program);
  const Placement placement(program);
  waits_for->assign(program.devices, {});
  for (int d = 0; d < program.devices; ++d)
    PP_RETURN_IF_ERROR(CheckList(unrolled, placement, d, depth, bytes, &(*waits_for)[d]));
  return depth == Depth::kSchedule ? Status() : CheckSteps(unrolled);
}

Status CheckListsAndProgress(const Program& program, const Program& unrolled, Depth depth,
                             std::vector<WaitsFor>* waits_for) {
  PP_RETURN_IF_ERROR(CheckLists(program, unrolled, depth, waits_for));
  if (depth == Depth::kSchedule) return {};
  const Status status = Execute(unrolled, *waits_for, CostModel(), nullptr);
  if (!status.ok()) PP_RETURN_IF_ERROR(FindOppositeOrders(unrolled));
  return status;
}

// That a plan has what detects a gradient overflow, and that no STEP, which may change the loss's
// scale, comes between a micro-batch's forward and its backward.
Status CheckNorm(const Program& program) {
  if (!program.job || !InfoOf(program.job->dtype).scales_loss) return {};
  if (program.clip && !program.MakesVersions()) return {};
  return Status::Invalid(fmt::format("activations of {} without a gradient norm (clip exact)",
                                     NameOf(program.job->dtype)));
}

}  // namespace

Status VerifyRoutines(const Program& program, Depth depth) {
  for (size_t r = 0; r < program.routines.size(); ++r)
    PP_RETURN_IF_ERROR(Verify(RoutineOf(program, r), depth).In(program.routines[r].name));
  return {};
}

Status VerifyDevice(const Program& program, int device, Depth depth, WaitsFor* waits_for) {
  PP_RETURN_IF_ERROR(CheckAllRegions(program, depth, device, device + 1));
  const ValueBytes bytes(program);
  for (size_t r = 0; r < program.routines.size(); ++r)
    PP_RETURN_IF_ERROR(
        VerifyDevice(RoutineOf(program, r), device, depth, nullptr).In(program.routines[r].name));
  const Placement placement(program);
  if (!program.overlaps) return CheckList(program, placement, device, depth, bytes, waits_for);
  return CheckList(UnrollDevice(program, device, kUnrolledBodies), placement, device, depth, bytes,
                   waits_for)
      .In(kUnrolled);
}

Status VerifyLists(const Program& program, Depth depth, std::vector<WaitsFor>* waits_for) {
  PP_RETURN_IF_ERROR(CheckNorm(program));
  PP_RETURN_IF_ERROR(CheckAllRegions(program, depth, 0, program.devices));
  return CheckLists(program, program, depth, waits_for);
}

Status Verify(const Program& program, Depth depth, std::vector<WaitsFor>* waits_for) {
  std::vector<WaitsFor> own;
  if (waits_for == nullptr) waits_for = &own;
  PP_RETURN_IF_ERROR(CheckNorm(program));
  PP_RETURN_IF_ERROR(CheckAllRegions(program, depth, 0, program.devices));
  PP_RETURN_IF_ERROR(VerifyRoutines(program, depth));
  if (!program.overlaps) return CheckListsAndProgress(program, program, depth, waits_for);
  return CheckListsAndProgress(program, Unroll(program, kUnrolledBodies), depth, waits_for)
      .In(kUnrolled);
}

}  // namespace pp
