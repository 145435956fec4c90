// The costs of a program's stages: what its instructions take, and what its values hold, as
// --costs, plans and files say it. Times are those of one micro-batch on a whole device, in seconds
// or in any unit, T; if a pipe places V stages on a device, each costs 1/V. The rows are in
// costs.def; what an instruction of a program costs follows in semantics/cost_model.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/base/units.h"

namespace pp {

// One number for all stages, or one for each; some may have none. If micro-batches have several
// shapes (shapes.h), perhaps one for each stage of each shape, shape after shape; else they are
// those of the first one.
using PerStage = std::vector<double>;

// By key. Sums of everything in a plan stay far below double's maximum.
struct CostModel {
#define PP_COST(key, initial, unit, of, part, most, fallback, meaning) PerStage key{initial};
#include "schema/model/costs.def"
  bool seconds = false;  // times are in seconds, and bandwidth is in bytes per second

  bool operator==(const CostModel&) const = default;
  std::string_view Unit() const { return seconds ? "s" : "T"; }
};

// What of a step a cost is a price of.
enum class CostPart : uint8_t { kCompute, kMessages, kReductions, kOptimizer, kMemory };

// A row of the table.
struct CostInfo {
  std::string_view key;
  PerStage CostModel::*member;
  Dimension unit;
  bool of_device;  // of V stages on a device, each has 1/V of it
  CostPart part;
  double most;
  PerStage initial;
  std::string_view meaning;
};
std::span<const CostInfo> Costs();
// "f, b, r, ...", for errors.
std::string CostKeys();

// "f=1,b=2,stash=40MiB", each key of the table at most once, a value being one number >= 0 or one
// for each stage: "f=1:1:2:1". All may be left out.
// If a time or a bandwidth has a unit (f=10ms, bandwidth=100GB/s), the other ones are in seconds or
// have theirs. Bytes have one or are bare.
Result<CostModel> ParseCosts(std::string_view text);
// Whether there is one number for all stages or one for each.
Status CheckCosts(const CostModel& costs, int stages, int shapes = 1);
// Both, of an option: the errors name it.
Result<CostModel> ParseCosts(std::string_view text, int stages);

// The same text, of all keys that have values, but for those that are zero as if not given.
std::string ToText(const CostModel& costs);
// The same costs, where a number that all stages have is there once.
CostModel Compact(CostModel costs);

// Those of one part take so many times as long; 0: no time.
CostModel Scaled(CostModel costs, CostPart part, double factor);

// Those of the shapes together. REQUIRES: the same keys have one number, or one for each stage.
CostModel OfShapes(const std::vector<CostModel>& shapes, int stages);

// Whether a row distinguishes them.
inline bool HasShapes(const PerStage& values, int stages) {
  return values.size() > std::max<size_t>(1, stages);
}
// The number for one stage, of one shape.
inline double At(const PerStage& values, int stage, int shape, int stages) {
  if (HasShapes(values, stages)) return values[shape * stages + stage];
  return values[values.size() == 1 ? 0 : stage];
}
// The number for one stage, of the first shape.
inline double At(const PerStage& values, int stage) {
  return values[values.size() == 1 ? 0 : stage];
}

// Whether the costs say how many bytes anything has.
bool CountsBytes(const CostModel& costs);

}  // namespace pp
