#include "schema/base/json.h"

#include <fmt/format.h>

namespace pp {

Result<nlohmann::json> ParseJson(std::string_view text, std::vector<std::string>* keys) {
  bool deep = false;
  // What it refuses is read on, but not kept.
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    if (keys != nullptr && depth == 1 && event == nlohmann::json::parse_event_t::key)
      keys->push_back(value.get<std::string>());
    deep |= depth > kMostJsonDepth;
    return !deep;
  };
  nlohmann::json root = nlohmann::json::parse(text, watch, /*allow_exceptions=*/false);
  if (deep)
    return Status::Invalid(
        fmt::format("JSON nested more than {} levels deep (at most that)", kMostJsonDepth));
  return root;
}

}  // namespace pp
