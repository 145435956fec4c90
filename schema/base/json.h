// JSON from files that others wrote: the one place that reads it, in a time that grows with its
// length and no faster.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "schema/base/status.h"

namespace pp {

// nlohmann::json reads any depth, but copies, compares and prints by recursion: on a stack.
inline constexpr int kMostJsonDepth = 64;

// Discarded (is_discarded) where `text` is no JSON. Invalid: it is nested more deeply than that.
//
// Python also writes NaN, Infinity and -Infinity, which JSON has not: they become strings of
// kNoJson and the word. So no number is read where one of them stands, and DumpJson writes them as
// they were.
Result<nlohmann::json> ParseJson(std::string_view text);
inline constexpr char kNoJson = '\x01';

// In ASCII, on one line. What is no UTF-8 is replaced.
std::string DumpJson(const nlohmann::json& value);

// What has many values: the outermost object, or that member of it, if `member` is not empty.
struct JsonContainer {
  std::string_view member;
  nlohmann::json::value_t type = nlohmann::json::value_t::object;  // or array
};

// One of its values: which one it is, and in an object under which key.
struct JsonPart {
  size_t index;
  const std::string& key;
  nlohmann::json value;
};
using TakeJsonPart = std::function<Status(JsonPart)>;

// Calls `take` with one value of the container after the other, until a call fails; only one of
// them is in memory. What else the text has is checked, and not kept. False: it is no JSON, or has
// no such container; some calls may have been made then. Invalid: it is nested too deeply, or the
// member occurs twice, or a value has more than so many in it.
inline constexpr size_t kMostJsonValues = 1 << 20;
Result<bool> ForEachJsonPart(std::string_view text, const JsonContainer& container,
                             const TakeJsonPart& take);

// The same of a text that comes in pieces, the last of them empty. Invalid, too: one value has more
// than so many bytes.
inline constexpr size_t kMostJsonPart = 100 << 20;
using JsonPieces = std::function<Result<std::string_view>()>;
Result<bool> ForEachJsonPart(const JsonPieces& next, const JsonContainer& container,
                             const TakeJsonPart& take);

}  // namespace pp
