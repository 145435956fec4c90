// JSON from files that others wrote: the one place that reads it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {

// nlohmann::json reads any depth, but copies, compares and prints by recursion: on a stack.
inline constexpr int kMostJsonDepth = 64;

// Discarded (is_discarded) where `text` is no JSON. Invalid: it is nested more deeply than that.
// *keys, if given, gets the keys of the outermost object, and those that occur twice, twice.
Result<nlohmann::json> ParseJson(std::string_view text, std::vector<std::string>* keys = nullptr);

}  // namespace pp
