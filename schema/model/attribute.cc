#include "schema/model/attribute.h"

#include <algorithm>

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

std::string Listed(ValueNames names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace pp
