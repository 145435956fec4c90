#include "compiler/memory_limit.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

namespace pp {
namespace {

// How many bytes a unit has, in letters of either case: B; KiB, MiB, ... or K, M, ... are powers of
// 1024, KB, MB, ... of 1000. 0 for no unit; empty if the unit is unknown.
std::optional<double> BytesOf(std::string_view unit) {
  if (unit.empty()) return 0;
  std::string lower(unit);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "b") return 1;
  constexpr std::string_view kPrefixes = "kmgt";
  const size_t prefix = kPrefixes.find(lower[0]);
  if (prefix == std::string_view::npos) return std::nullopt;
  const std::string_view rest = std::string_view(lower).substr(1);
  const auto power = static_cast<double>(prefix + 1);
  if (rest == "b") return std::pow(1000.0, power);
  if (rest.empty() || rest == "ib") return std::pow(1024.0, power);
  return std::nullopt;
}

}  // namespace

Result<MemoryLimit> ParseMemoryLimit(const std::string& text) {
  const Status wrong = Status::Invalid(
      fmt::format("--memory-limit: '{}' (activations as in 1.5, or bytes as in 40GiB; for all "
                  "devices, or for each as in 2:2:1.5)",
                  Shown(text)));
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
