#include "compiler/memory_limit.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace pp {
namespace {

constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};

// How many bytes a unit has; 0 for no unit; empty where there is none of that name.
std::optional<double> BytesOf(std::string_view unit) {
  if (unit.empty()) return 0;
  for (size_t i = 0; i < std::size(kUnits); ++i)
    if (unit == kUnits[i]) return std::pow(1024.0, static_cast<double>(i));
  return std::nullopt;
}

}  // namespace

Result<MemoryLimit> ParseMemoryLimit(const std::string& text) {
  const Status wrong = Status::Invalid(
      fmt::format("--memory-limit: '{}' (activations as in 1.5, or bytes as in 40GiB; for all "
                  "devices, or for each as in 2:2:1.5)",
                  text));
  MemoryLimit limit;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view word = std::string_view(text).substr(begin, end - begin);
    double value = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || !(value >= 0) || !std::isfinite(value)) return wrong;
    const auto bytes = BytesOf(word.substr(static_cast<size_t>(rest - word.data())));
    if (!bytes) return wrong;
    const auto unit = *bytes > 0 ? MemoryLimit::kBytes : MemoryLimit::kActivations;
    if (begin > 0 && unit != limit.unit) return wrong;
    limit.unit = unit;
    constexpr double kMostBytes = int64_t{1} << 62;
    if (*bytes > 0 && value * *bytes > kMostBytes) return wrong;
    limit.values.push_back(*bytes > 0 ? value * *bytes : value);
    begin = end + 1;
  }
  return limit;
}

}  // namespace pp
