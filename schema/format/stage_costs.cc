#include "schema/format/stage_costs.h"

#include <fmt/format.h>

#include <algorithm>

#include "schema/base/json.h"

namespace pp {
namespace {

using Json = nlohmann::json;

Status ReadRow(const CostInfo& row, const Json& given, PerStage* values) {
  values->clear();
  const Json list = given.is_array() ? given : Json::array({given});
  if (list.empty()) return Status::Invalid("is an empty list (a number for each stage)");
  for (const Json& value : list) {
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= row.most))
      return Status::Invalid(
          fmt::format("{} is no number from 0 to {:g}", Shown(value.dump()), row.most));
    values->push_back(value.get<double>());
  }
  return {};
}

}  // namespace

bool HasStageCosts(const std::string& text) {
  const auto json = ParseJson(text);
  return json.ok() && json->is_object() && json->contains("costs");
}

Result<CostModel> ParseStageCosts(const std::string& text) {
  const auto json = ParseJson(text);
  if (!json.ok()) return json.status();
  if (!json->is_object() || !json->contains("costs") || !(*json)["costs"].is_object())
    return Status::Invalid("costs is missing, or no object (pipec.torch.profile writes it)");
  const Json* found = &(*json)["costs"];
  CostModel costs;
  costs.b.clear();  // unless it is there
  costs.seconds = true;
  for (const auto& [key, value] : found->items()) {
    const auto row = std::find_if(Costs().begin(), Costs().end(),
                                  [&](const CostInfo& cost) { return cost.key == key; });
    if (row == Costs().end())
      return Status::Invalid(fmt::format("costs: '{}' is no cost ({})", Shown(key), CostKeys()));
    PP_RETURN_IF_ERROR(ReadRow(*row, value, &(costs.*row->member)).In("costs: " + key));
  }
  if (!found->contains("f"))
    return Status::Invalid("costs: f is missing (the forward of each stage, in seconds)");
  if (!found->contains("b") && !(found->contains("bi") && found->contains("bw")))
    return Status::Invalid("costs: b is missing (the backward of each stage, or bi and bw)");
  return costs;
}

Result<CostModel> CostsOfStages(CostModel costs, const Program& program) {
  const std::vector<double> shares = program.Shares();
  for (const CostInfo& row : Costs())
    if (const size_t size = (costs.*row.member).size();
        size > 1 && static_cast<int>(size) != program.stages)
      return Status::Invalid(fmt::format("{} has {} numbers (1, or {}: one for each stage)",
                                         row.key, size, program.stages));
  const bool has_b = !costs.b.empty();
  for (int s = 0; !has_b && s < program.stages; ++s)
    costs.b.push_back(At(costs.bi, s) + At(costs.bw, s));
  for (const CostInfo& row : Costs()) {
    PerStage& values = costs.*row.member;
    if (!row.of_device || values.empty()) continue;
    PerStage whole;
    for (int s = 0; s < program.stages; ++s)
      whole.push_back(std::min(row.most, At(values, s) / shares[s]));
    values = whole;
  }
  return costs;
}

}  // namespace pp
