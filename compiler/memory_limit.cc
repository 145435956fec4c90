#include "compiler/memory_limit.h"

#include <fmt/format.h>

#include <string_view>

#include "schema/base/units.h"

namespace pp {
Result<MemoryLimit> ParseMemoryLimit(const std::string& text) {
  const Status wrong =
      Status::Invalid(fmt::format("'{}' (activations as in 1.5, or bytes as in 40GiB; for all "
                                  "devices, or for each as in 2:2:1.5)",
                                  Shown(text)));
  MemoryLimit limit;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find_first_of(":,", begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    const auto quantity = ReadQuantity(word);
    if (!quantity || quantity->dimension > Dimension::kBytes ||
        quantity->dimension == Dimension::kTime)
      return wrong;
    const bool bytes = quantity->dimension == Dimension::kBytes;
    const auto unit = bytes ? MemoryLimit::kBytes : MemoryLimit::kActivations;
    if (begin > 0 && unit != limit.unit) return wrong;
    limit.unit = unit;
    constexpr double kMostBytes = int64_t{1} << 62;
    if (bytes && quantity->value > kMostBytes) return wrong;
    limit.values.push_back(quantity->value);
    begin = end + 1;
  }
  return limit;
}

}  // namespace pp
