#include "schema/proof/body_walk.h"

#include <fmt/format.h>

#include "schema/proof/verify.h"
#include "schema/sections.h"
#include "schema/semantics/walk.h"
#include "schema/text.h"

namespace pp {
namespace {

constexpr int kBodies = 2;  // so that the second one has one before it

// Checks offsets, and records what becomes free in list[begin] to list[end - 1].
class FreeRecorder : public MemoryPolicy {
 public:
  FreeRecorder(const Program& program, int device, int begin, int end, std::vector<Freed>* freed)
      : check_(program, device, program.lists[device].body),
        begin_(begin),
        end_(end),
        freed_(*freed) {}

  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    return check_.Take(claim, offset, last_use);
  }
  void Free(int64_t offset, int64_t bytes, int index) override {
    check_.Free(offset, bytes, index);
    if (index >= begin_ && index < end_) freed_.push_back({index - begin_, offset, bytes});
  }

 private:
  MemoryCheck check_;
  const int begin_, end_;
  std::vector<Freed>& freed_;
};

}  // namespace

Status WalkBody(const Program& program, int device, BodyWalk* out) {
  *out = {};
  PP_RETURN_IF_ERROR(VerifyDevice(program, device, Depth::kPlan, nullptr));
  const Program unrolled = UnrollDevice(program, device, kBodies);
  const std::vector<Instruction>& body = program.lists[device].body;
  const int length = static_cast<int>(body.size());
  const int first = PrologueSize(program, device);
  const int second = first + length;
  FreeRecorder memory(unrolled, device, second, second + length, &out->freed);
  const ValueBytes bytes(unrolled);
  const Placement placement(program);
  WaitsFor waits_for;
  PP_RETURN_IF_ERROR(WalkList(unrolled, device, unrolled.lists[device].body,
                              {.depth = Depth::kPlan,
                               .placement = &placement,
                               .memory = &memory,
                               .bytes = &bytes,
                               .waits_for = &waits_for,
                               .bodies = program.overlaps ? 1 : kBodies}));
  for (int i = 0; i < length; ++i) {
    const int32_t after = waits_for[second + i];
    // What a body begins is over in the next one, and what it writes it also wrote in the previous
    // one.
    if (after >= 0 && after < first)
      return Status::Invalid(
          fmt::format("device {}, '{}' (instruction {}): waits for what is two "
                      "bodies older (at most one)",
                      device, ToText(body[i]), i));
    const bool same = after >= second;
    out->waits_for.push_back(
        after < 0 ? Dependence{} : Dependence{same ? 0 : -1, after - (same ? second : first)});
  }
  return {};
}

Status WalkBodies(const Program& program, const Program& unrolled, int bodies,
                  std::vector<WaitsFor>* waits_for) {
  const ValueBytes bytes(unrolled);
  const Placement placement(program);
  waits_for->assign(program.devices, {});
  for (int d = 0; d < program.devices; ++d) {
    const std::vector<Instruction>& list = unrolled.lists[d].body;
    MemoryCheck memory(unrolled, d, list);
    WalkArgs args{.depth = Depth::kLists,
                  .placement = &placement,
                  .waits_for = &(*waits_for)[d],
                  .bodies = program.overlaps ? 1 : bodies};
    if (program.lists[d].arena_bytes > 0) {
      args.depth = Depth::kPlan;
      args.memory = &memory;
      args.bytes = &bytes;
    }
    PP_RETURN_IF_ERROR(WalkList(unrolled, d, list, args));
  }
  return {};
}

}  // namespace pp
