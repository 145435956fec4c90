// Options of a command line: a value is checked where it is parsed, every wrong one gets the
// same kind of error, and help says which values there are and which is the default.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "schema/base/status.h"
#include "schema/model/attribute.h"

namespace pp::options {

// What a wrong value throws, out of CLI11's parser.
struct Refused {
  Status status;  // names the option
};

// An option whose text `read` takes. `type`: what help shows for its value.
CLI::Option* Add(CLI::App* to, const std::string& name, const std::string& type,
                 const std::string& help, std::function<Status(const std::string&)> read);

// Text that is looked at later: a name, a file.
CLI::Option* AddText(CLI::App* to, const std::string& name, const std::string& type,
                     const std::string& help, std::string* text);

// A whole number from `least` on. What *number holds is the default if it is one, too.
CLI::Option* AddWhole(CLI::App* to, const std::string& name, const std::string& help, int32_t least,
                      int32_t* number);

// One of `names`: as text, or its index as a number or an enum. What *value holds is the default.
template <typename T>
CLI::Option* AddChoice(CLI::App* to, const std::string& name, const std::string& help,
                       ValueNames names, T* value) {
  const std::string type = fmt::format("{}", fmt::join(names, "|"));
  const auto read = [=](const std::string& text) -> Status {
    int32_t index = 0;
    PP_RETURN_IF_ERROR(ReadName(text, names, &index));
    if constexpr (std::is_same_v<T, std::string>) {
      *value = text;
    } else if constexpr (requires { typename T::value_type; }) {
      *value = static_cast<typename T::value_type>(index);
    } else {
      *value = static_cast<T>(index);
    }
    return {};
  };
  CLI::Option* option = Add(to, name, type, help, read);
  if constexpr (std::is_same_v<T, std::string>) {
    option->default_str(*value);
  } else if constexpr (std::is_enum_v<T>) {
    option->default_str(std::string(names[static_cast<size_t>(*value)]));
  }
  return option;
}

// What AddAttribute takes from a row, whatever its type.
struct AnyAttribute {
  const char* option;
  const char* help;
  ValueNames names;
  bool flag = false, number = false;
  std::optional<int32_t> usual = {};  // the default: a number, or the index of its name
  std::function<Status(const std::string&)> check = {};
};
CLI::Option* AddAnyAttribute(CLI::App* to, const AnyAttribute& row, std::string* text);

// A row of a table of attributes. Its text is checked now, and read later: an import's lists say
// something, too. A flag that is given: "true".
template <typename Owner, typename T>
CLI::Option* AddAttribute(CLI::App* to, const Attribute<Owner, T>& row, std::string* text) {
  AnyAttribute any{.option = row.option, .help = row.help};
  if (!std::is_same_v<T, std::vector<OperatorKind>>) any.names = row.names;  // else it is a list
  const T usual = Owner{}.*row.member;
  any.flag = std::is_same_v<T, bool> && row.names.empty();
  any.number = std::is_same_v<T, int32_t> && row.names.empty();
  if constexpr (std::is_enum_v<T> || std::is_integral_v<T>)
    if (any.number || !row.names.empty()) any.usual = static_cast<int32_t>(usual);
  if (any.number && any.usual < row.least) any.usual.reset();
  any.check = [row](const std::string& given) -> Status {
    if (std::is_same_v<T, std::vector<int32_t>>) return {};      // or auto
    if (std::is_same_v<T, std::optional<CostModel>>) return {};  // or files
    Owner checked;
    return Read(row, given, &(checked.*row.member));
  };
  return AddAnyAttribute(to, any, text);
}

}  // namespace pp::options
