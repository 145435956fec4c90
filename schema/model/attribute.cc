#include "schema/model/attribute.h"

#include <algorithm>
#include <iterator>

#include "schema/base/number.h"
#include "schema/base/split.h"

namespace pp {

Status ReadWhole(std::string_view text, int32_t least, int32_t most, int32_t* number) {
  if (ReadNumber(text, number) && *number >= least && *number <= most) return {};
  return Status::Invalid(
      fmt::format("'{}' (a whole number from {} to {})", Shown(text), least, most));
}

Status ReadWholes(std::string_view text, std::vector<int32_t>* numbers) {
  numbers->clear();
  for (const std::string_view number : Split(text, ',')) {
    if (number.empty())
      return Status::Invalid(fmt::format("'{}' (numbers separated by commas)", Shown(text)));
    PP_RETURN_IF_ERROR(ReadWhole(number, 0, INT32_MAX, &numbers->emplace_back()));
  }
  return {};
}

Status ReadName(std::string_view text, ValueNames names, int32_t* index) {
  const auto found = std::find(names.begin(), names.end(), text);
  *index = static_cast<int32_t>(found - names.begin());
  if (found != names.end()) return {};
  return Status::Invalid(fmt::format("'{}' ({})", Shown(text), Listed(names)));
}

Status ReadKinds(std::string_view text, ValueNames names, std::vector<OperatorKind>* kinds) {
  kinds->clear();
  if (text == names[0]) return {};
  const ValueNames known = names.subspan(1);
  for (const std::string_view name : Split(text, ',')) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      return Status::Invalid(
          fmt::format("'{}' ({}, or some of {})", Shown(name), names[0], Listed(known)));
    const auto* kind = std::find(std::begin(kOperatorNames), std::end(kOperatorNames), name);
    PP_CHECK(kind != std::end(kOperatorNames));
    kinds->push_back(static_cast<OperatorKind>(kind - std::begin(kOperatorNames)));
  }
  std::sort(kinds->begin(), kinds->end());
  kinds->erase(std::unique(kinds->begin(), kinds->end()), kinds->end());
  return {};
}

std::string TextOf(const std::vector<OperatorKind>& kinds, ValueNames names) {
  std::vector<std::string_view> words;
  for (const OperatorKind kind : kinds) words.push_back(NameOf(kind));
  return words.empty() ? std::string(names[0]) : fmt::format("{}", fmt::join(words, ","));
}

std::string Listed(ValueNames names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace pp
