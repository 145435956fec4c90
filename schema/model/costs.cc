#include "schema/model/costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "schema/base/split.h"

namespace pp {
namespace {

// Of a number with its unit, in an error.
std::string_view ExampleOf(Dimension unit) {
  return unit == Dimension::kTime        ? ", in T, or as in 10ms"
         : unit == Dimension::kBandwidth ? ", or as in 100GB/s"
         : unit == Dimension::kBytes     ? ", or as in 40MiB"
                                         : "";
}

}  // namespace

std::span<const CostInfo> Costs() {
  static const CostInfo kCosts[] = {
#define PP_COST(key, initial, unit, of, part, most, fallback, meaning) \
  {#key,                                                               \
   &CostModel::key,                                                    \
   Dimension::k##unit,                                                 \
   std::string_view(#of) == "Device",                                  \
   CostPart::k##part,                                                  \
   most,                                                               \
   PerStage{initial},                                                  \
   meaning},
#include "schema/model/costs.def"
  };
  return kCosts;
}

std::string CostKeys() {
  std::string keys;
  for (const CostInfo& cost : Costs()) keys.append(keys.empty() ? "" : ", ").append(cost.key);
  return keys;
}

Result<CostModel> ParseCosts(std::string_view text) {
  CostModel costs;
  if (text.empty()) return costs;
  std::set<std::string_view> seen;
  for (const std::string_view item : Split(text, ',')) {
    const size_t equals = item.find('=');
    const auto row = std::find_if(Costs().begin(), Costs().end(), [&](const CostInfo& cost) {
      return equals != item.npos && cost.key == item.substr(0, equals);
    });
    if (row == Costs().end() || !seen.insert(row->key).second)
      return Status::Invalid(
          fmt::format("'{}' ({}, each once, as in f=1,b=2)", Shown(item), CostKeys()));
    PerStage values;
    for (const std::string_view word : Split(item.substr(equals + 1), ':')) {
      const auto quantity = ReadQuantity(word);
      const bool bare = quantity && quantity->dimension == Dimension::kNone;
      if (!quantity || quantity->value > row->most || !(bare || quantity->dimension == row->unit))
        return Status::Invalid(fmt::format("'{}' (numbers from 0 to {:g}{})", Shown(item),
                                           row->most, ExampleOf(row->unit)));
      costs.seconds |= !bare && row->unit != Dimension::kBytes;
      values.push_back(quantity->value);
    }
    costs.*row->member = values;
  }
  return costs;
}

namespace {

// Whether it differs from shape to shape: what is of a micro-batch. (A message's latency does not.)
bool IsByShape(const CostInfo& row) {
  return row.part == CostPart::kCompute || row.member == &CostModel::comm;
}

}  // namespace

Status CheckCosts(const CostModel& costs, int stages, int shapes) {
  for (const CostInfo& row : Costs()) {
    const PerStage& values = costs.*row.member;
    const auto size = static_cast<int64_t>(values.size());
    const bool by_shape = shapes > 1 && IsByShape(row);
    if (size <= 1 || size == stages || (by_shape && size == int64_t{stages} * shapes)) continue;
    return Status::Invalid(fmt::format(
        "'{}={}' has {} numbers (1, or {}: one for each stage{})", row.key,
        Shown(fmt::format("{}", fmt::join(values, ":"))), size, stages,
        by_shape ? fmt::format(", or {}: of each of {} shapes", int64_t{stages} * shapes, shapes)
                 : ""));
  }
  return {};
}

Result<CostModel> ParseCosts(std::string_view text, int stages) {
  auto costs = ParseCosts(text);
  PP_RETURN_IF_ERROR(costs.status().In("--costs"));
  PP_RETURN_IF_ERROR(CheckCosts(*costs, stages).In("--costs"));
  return costs;
}

std::string ToText(const CostModel& costs) {
  std::string text;
  for (const CostInfo& row : Costs()) {
    const PerStage& values = costs.*row.member;
    if (values.empty() || (values == row.initial && values == PerStage{0})) continue;
    const std::string_view unit = row.unit == Dimension::kBytes       ? "B"
                                  : !costs.seconds                    ? ""
                                  : row.unit == Dimension::kTime      ? "s"
                                  : row.unit == Dimension::kBandwidth ? "B/s"
                                                                      : "";
    text += fmt::format("{}{}=", text.empty() ? "" : ",", row.key);
    for (size_t s = 0; s < values.size(); ++s)
      text += fmt::format("{}{}{}", s > 0 ? ":" : "", values[s], unit);
  }
  return text;
}

CostModel OfShapes(const std::vector<CostModel>& shapes, int stages) {
  CostModel all = shapes.front();
  for (const CostInfo& row : Costs()) {
    PerStage& values = all.*row.member;
    const auto same = [&](const CostModel& one) { return one.*row.member == values; };
    if (!IsByShape(row) || std::all_of(shapes.begin(), shapes.end(), same)) continue;
    PerStage joined;
    for (const CostModel& one : shapes)
      for (int s = 0; s < stages; ++s) joined.push_back(At(one.*row.member, s));
    values = std::move(joined);
  }
  return all;
}

CostModel Compact(CostModel costs) {
  for (const CostInfo& row : Costs()) {
    PerStage& values = costs.*row.member;
    const auto differs = [&](double x) { return x != values.front(); };
    if (std::none_of(values.begin(), values.end(), differs) && !values.empty()) values.resize(1);
  }
  return costs;
}

CostModel Scaled(CostModel costs, CostPart part, double factor) {
  for (const CostInfo& row : Costs()) {
    if (row.part != part || (row.unit != Dimension::kTime && row.unit != Dimension::kBandwidth))
      continue;
    for (double& value : costs.*row.member) {
      if (row.unit == Dimension::kTime) value *= factor;
      // A bandwidth of 0 has no limit.
      if (row.unit == Dimension::kBandwidth) value = factor > 0 ? value / factor : 0;
    }
  }
  return costs;
}

bool CountsBytes(const CostModel& costs) {
  return std::any_of(Costs().begin(), Costs().end(), [&](const CostInfo& row) {
    return row.unit == Dimension::kBytes && !(costs.*row.member).empty();
  });
}

}  // namespace pp
