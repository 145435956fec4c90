// What lies in each device's arena, or is alive as the costs have it: pipec show --format memory.
#include "schema/semantics/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/draw.h"
#include "schema/sections.h"
#include "schema/semantics/alive.h"
#include "schema/semantics/walk.h"
#include "schema/text.h"

namespace pp {
namespace {

using ByKind = std::array<int64_t, kKindNumbers>;

int64_t Sum(const ByKind& bytes) {
  int64_t sum = 0;
  for (const int64_t each : bytes) sum += each;
  return sum;
}

// Follows what a list's values occupy, in list order, to where that is most.
class Watch : public MemoryCheck {
 public:
  Watch(const Program& program, int device)
      : MemoryCheck(program, device, program.lists[device].body) {}

  Status Take(const Claim& claim, int64_t* offset, int32_t* last_use) override {
    PP_RETURN_IF_ERROR(MemoryCheck::Take(claim, offset, last_use));
    kind_at_[*offset] = claim.value.kind;
    live_[static_cast<size_t>(claim.value.kind)] += claim.bytes;
    if (Sum(live_) > Sum(most_)) most_ = live_, index_ = claim.index;
    return {};
  }
  void Free(int64_t offset, int64_t bytes, int index) override {
    live_[static_cast<size_t>(kind_at_[offset])] -= bytes;
    MemoryCheck::Free(offset, bytes, index);
  }

  ByKind most() const { return most_; }
  int index() const { return index_; }

 private:
  std::map<int64_t, Kind> kind_at_;
  ByKind live_{}, most_{};
  int index_ = -1;
};

// Kinds that are shown together.
struct Column {
  std::string_view name;
  std::vector<Kind> kinds;
};
const Column kColumns[] = {
    {"weights", {Kind::kWeights, Kind::kRounded}},
    {"gradients", {Kind::kWgrad}},
    {"optimizer", {Kind::kOptimizer}},
    {"workspace", {Kind::kScratch, Kind::kWorkspace}},
    {"sums", {Kind::kLoss, Kind::kNorm, Kind::kExchange}},
    {"stash", {Kind::kStash, Kind::kInput}},
    {"work", {Kind::kWork}},
    {"messages", {Kind::kAct, Kind::kGrad}},
    {"tokens", {Kind::kTokens, Kind::kTargets}},
};

struct Unit {
  std::string_view name;
  double bytes;
};
Unit UnitFor(int64_t most) {
  constexpr Unit kUnits[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}};
  for (const Unit& unit : kUnits)
    if (static_cast<double>(most) >= unit.bytes) return unit;
  return {"B", 1};
}

// What a device holds where that is most: at that instruction, -1 if there is none.
struct Held {
  ByKind bytes{};
  int64_t all = 0;  // with the gaps between them
  int index = -1;
};

// In the arenas of a plan with a model.
Result<std::vector<Held>> InArenas(const Program& program) {
  const Placement placement(program);
  const ValueBytes bytes(program);
  std::vector<Held> devices;
  for (int d = 0; d < program.devices; ++d) {
    Watch watch(program, d);
    PP_RETURN_IF_ERROR(WalkList(
        program, d, program.lists[d].body,
        {.depth = Depth::kPlan, .placement = &placement, .memory = &watch, .bytes = &bytes}));
    Held& held = devices.emplace_back(watch.most(), program.lists[d].arena_bytes, watch.index());
    for (const Region& region : program.lists[d].regions)
      held.bytes[static_cast<size_t>(region.kind)] += region.bytes;
  }
  return devices;
}

// Of a plan without one, as its costs have it.
Result<std::vector<Held>> Alive(const Program& program) {
  const auto costs = CostsOf(program);
  PP_RETURN_IF_ERROR(costs.status());
  if (!CountsBytes(*costs))
    return Status::Invalid(
        "no model, and no bytes in its costs (pipec compile --model, or --costs stash=40MiB,...)");
  const Placement placement(program);
  const AliveBytes alive(program, *costs);
  std::vector<Held> devices;
  for (int d = 0; d < program.devices; ++d) {
    PP_RETURN_IF_ERROR(WalkList(program, d, program.lists[d].body, {.placement = &placement}));
    const AliveBytes::Most most = alive.MostOn(d);
    Held& held = devices.emplace_back(ByKind{}, most.sum, most.index);
    for (size_t k = 0; k < held.bytes.size(); ++k)
      held.bytes[k] = static_cast<int64_t>(most.bytes[k]);
  }
  return devices;
}

}  // namespace

Result<std::string> MemoryTable(const Program& given) {
  const Program program = Unrolled(given);
  const auto devices = given.job ? InArenas(program) : Alive(program);
  PP_RETURN_IF_ERROR(devices.status());
  int64_t largest = 0;
  for (const Held& held : *devices) largest = std::max(largest, held.all);
  const Unit unit = UnitFor(largest);
  std::string out = fmt::format("{:<6}", unit.name);
  for (const Column& column : kColumns) out += fmt::format("{:>10}", column.name);
  out += fmt::format("{:>10}{:>10}  most at\n", "gaps", given.job ? "arena" : "alive");
  const auto cell = [&](int64_t value) {
    return value == 0 ? fmt::format("{:>10}", "-")
                      : fmt::format("{:10.4g}", static_cast<double>(value) / unit.bytes);
  };
  for (int d = 0; d < program.devices; ++d) {
    const Held& held = (*devices)[d];
    out += fmt::format("{:<6}", fmt::format("d{}", d));
    for (const Column& column : kColumns) {
      int64_t sum = 0;
      for (const Kind kind : column.kinds) sum += held.bytes[static_cast<size_t>(kind)];
      out += cell(sum);
    }
    out += cell(held.all - Sum(held.bytes)) + cell(held.all);
    out +=
        held.index < 0 ? "  -\n" : fmt::format("  {}\n", ToText(program.lists[d].body[held.index]));
  }
  return out;
}

}  // namespace pp
