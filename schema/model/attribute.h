// The attributes of programs and jobs as tables: a row says what an attribute is called in the text
// form, in plan files and among pipec's options, and which values it has. Everything that reads,
// writes, checks or describes attributes visits the rows.
//
// To add one: its member and its row (kProgramAttributes, kJobAttributes), its slot in program.fbs,
// and whatever it is for.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/batch_ramp.h"
#include "schema/model/costs.h"
#include "schema/model/lora.h"
#include "schema/model/operators.h"
#include "schema/model/shapes.h"

namespace pp {

using ValueNames = std::span<const std::string_view>;

// Where an attribute stands in the text form's header.
enum class HeaderLine : uint8_t {
  kOwn,     // on a line of its own, unless it has its default
  kAlways,  // the same, even then; it is always in a file, too
  kShared,  // on the line of the row before, unless it has its default
};

template <typename Owner, typename T>
struct Attribute {
  std::string_view text;  // its name in the text form and in JSON
  T Owner::*member;
  int slot;  // in its table of program.fbs
  const char* option;
  const char* help;
  // Of its values from 0 on; a bool without names is a flag. Of a list of kinds of operators: the
  // word for none of them, then those that it may have.
  ValueNames names = {};
  int32_t least = 0, most = INT32_MAX;  // of a number
  HeaderLine line = HeaderLine::kOwn;
};
// clang 14 needs to be told.
template <typename Owner, typename T>
Attribute(std::string_view, T Owner::*, int, const char*, const char*, ValueNames = {}, int32_t = 0,
          int32_t = 0, HeaderLine = {}) -> Attribute<Owner, T>;

// Calls visit(row) for each row of a table.
template <typename Table, typename Visit>
constexpr void ForEachRow(const Table& table, Visit visit) {
  std::apply([&](const auto&... row) { (visit(row), ...); }, table);
}

// What a user or a file says. The errors name no option.
Status ReadWhole(std::string_view text, int32_t least, int32_t most, int32_t* number);
// Separated by commas.
Status ReadWholes(std::string_view text, std::vector<int32_t>* numbers);
Status ReadName(std::string_view text, ValueNames names, int32_t* index);
std::string Listed(ValueNames names);
// "norm,gelu", or names[0] for none; and back. They come in the order of OperatorKind, each once.
Status ReadKinds(std::string_view text, ValueNames names, std::vector<OperatorKind>* kinds);
std::string TextOf(const std::vector<OperatorKind>& kinds, ValueNames names);

// A flag needs no text.
template <typename Owner, typename T, typename Value>
Status Read(const Attribute<Owner, T>& row, std::string_view text, Value* value) {
  if constexpr (std::is_same_v<Value, std::optional<bool>>) {
    return Read(row, text, &value->emplace());
  } else if constexpr (std::is_same_v<Value, std::string>) {
    *value = text;
  } else if constexpr (std::is_same_v<Value, std::vector<OperatorKind>>) {
    return ReadKinds(text, row.names, value);
  } else if constexpr (std::is_same_v<Value, Lora>) {
    return ReadLora(text, value);
  } else if constexpr (std::is_same_v<Value, BatchRamp>) {
    return ReadBatchRamp(text, value);
  } else if constexpr (std::is_same_v<Value, Shapes>) {
    return ReadShapes(text, value);
  } else if constexpr (std::is_same_v<Value, std::optional<CostModel>>) {
    value->reset();
    if (text.empty()) return {};
    auto costs = ParseCosts(text);
    PP_RETURN_IF_ERROR(costs.status());
    *value = std::move(*costs);
  } else if constexpr (std::is_same_v<Value, std::vector<int32_t>>) {
    return ReadWholes(text, value);
  } else {
    int32_t number = 1;
    if (!row.names.empty()) {
      PP_RETURN_IF_ERROR(ReadName(text, row.names, &number));
    } else if (std::is_same_v<Value, int32_t>) {
      PP_RETURN_IF_ERROR(ReadWhole(text, row.least, row.most, &number));
    }
    *value = static_cast<Value>(number);
  }
  return {};
}

// Empty for a flag. REQUIRES: CheckAttributes.
template <typename Owner, typename T>
std::string TextOf(const Attribute<Owner, T>& row, const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else if constexpr (std::is_same_v<T, std::vector<OperatorKind>>) {
    return TextOf(value, row.names);
  } else if constexpr (std::is_same_v<T, Lora> || std::is_same_v<T, BatchRamp> ||
                       std::is_same_v<T, Shapes>) {
    return TextOf(value);
  } else if constexpr (std::is_same_v<T, std::optional<CostModel>>) {
    return value ? ToText(*value) : std::string();
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    return fmt::format("{}", fmt::join(value, " "));
  } else {
    const auto number = static_cast<int32_t>(value);
    if (!row.names.empty()) return std::string(row.names[number]);
    return std::is_same_v<T, bool> ? std::string() : fmt::format("{}", number);
  }
}

// Whether a name or number is one that there is.
template <typename Table, typename Owner>
Status CheckAttributes(const Table& table, const Owner& owner) {
  Status status;
  ForEachRow(table, [&]<typename T>(const Attribute<Owner, T>& row) {
    if constexpr (std::is_same_v<T, int32_t> || std::is_enum_v<T>) {
      const auto number = static_cast<int32_t>(owner.*row.member);
      const bool named = !row.names.empty();
      const int32_t most = named ? static_cast<int32_t>(row.names.size()) - 1 : row.most;
      if (!status.ok() || (number >= row.least && number <= most)) return;
      const std::string range = fmt::format("a whole number from {} to {}", row.least, most);
      status = Status::Invalid(
          fmt::format("{}: is {} ({})", row.option, number, named ? Listed(row.names) : range));
    }
  });
  return status;
}

}  // namespace pp
