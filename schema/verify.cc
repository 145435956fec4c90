#include "schema/verify.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/execute.h"
#include "schema/regions.h"
#include "schema/sections.h"
#include "schema/text.h"

namespace pp {
namespace {

// Enough to see every section behind every other.
constexpr int kBodies = 2;
constexpr const char* kUnrolled = "prologue, 2 bodies, epilogue";

// Regions lie inside the arena and not on each other, and what the model needs is there.
Status CheckRegions(const Program& program, int device) {
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
          Info(region.kind).text, region.offset, region.offset + region.bytes, list.arena_bytes));
    end = region.offset + region.bytes;
  }
  for (const Region& needed : RegionsOf(program, device)) {
    const bool there = std::any_of(regions.begin(), regions.end(), [&](const Region& region) {
      return region.kind == needed.kind && region.stage == needed.stage &&
             region.pipe == needed.pipe && region.bytes >= needed.bytes &&
             region.offset % kAlign == 0;
    });
    if (!there)
      return Status::Invalid(fmt::format("no region of {} bytes for {}", needed.bytes,
                                         ToText(Value{needed.kind, needed.stage})));
  }
  return {};
}

// `paper` is the program with one list a device: itself, or unrolled.
Status CheckList(const Program& program, const Program& paper, int device, Depth depth,
                 const ValueBytes& bytes, WaitsFor* waits_for) {
  const std::vector<Instruction>& list = paper.lists[device].body;
  WalkArgs args{.depth = depth, .waits_for = waits_for};
  if (depth != Depth::kPlan) return WalkList(paper, device, list, args);
  PP_RETURN_IF_ERROR(CheckRegions(program, device).In(fmt::format("device {}", device)));
  MemoryCheck memory(paper, device, list);
  args.memory = &memory;
  args.bytes = &bytes;
  return WalkList(paper, device, list, args);
}

Status CheckLists(const Program& program, const Program& paper, Depth depth,
                  std::vector<WaitsFor>* waits_for) {
  const ValueBytes bytes(program);
  for (int d = 0; d < program.devices; ++d)
    PP_RETURN_IF_ERROR(CheckList(program, paper, d, depth, bytes, &(*waits_for)[d]));
  if (depth == Depth::kSchedule) return {};
  return Execute(paper, *waits_for, CostModel(), nullptr);
}

}  // namespace

Status VerifyDevice(const Program& program, int device, Depth depth, WaitsFor* waits_for) {
  const ValueBytes bytes(program);
  if (!HasSections(program)) return CheckList(program, program, device, depth, bytes, waits_for);
  return CheckList(program, Unroll(program, kBodies), device, depth, bytes, waits_for)
      .In(kUnrolled);
}

Status Verify(const Program& program, Depth depth, std::vector<WaitsFor>* waits_for) {
  std::vector<WaitsFor> own;
  if (waits_for == nullptr) waits_for = &own;
  waits_for->assign(program.devices, {});
  if (!HasSections(program)) return CheckLists(program, program, depth, waits_for);
  return CheckLists(program, Unroll(program, kBodies), depth, waits_for).In(kUnrolled);
}

}  // namespace pp
