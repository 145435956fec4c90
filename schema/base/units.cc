#include "schema/base/units.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <string>
#include <system_error>

namespace pp {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kTimes[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
constexpr std::string_view kPrefixes = "KMGTP";

// "", "K", "Mi" ...; 0 if it is none of them.
double PrefixOf(std::string_view text) {
  if (text.empty()) return 1;
  const size_t power = kPrefixes.find(text[0]);
  if (power == std::string_view::npos) return 0;
  if (text.size() == 1) return std::pow(1000.0, static_cast<double>(power + 1));
  return text.substr(1) == "i" ? std::pow(1024.0, static_cast<double>(power + 1)) : 0;
}

std::optional<double> BytesOf(std::string_view unit) {
  std::string upper(unit);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (char& c : upper)
    if (c == 'I') c = 'i';
  const bool has_b = upper.ends_with('B');
  if (has_b) upper.pop_back();
  if (!has_b && upper.size() == 1) upper += 'i';
  const double prefix = upper.empty() && !has_b ? 0 : PrefixOf(upper);
  return prefix > 0 ? std::optional(prefix) : std::nullopt;
}

std::optional<Quantity> UnitOf(std::string_view unit) {
  if (unit.empty()) return Quantity{1, Dimension::kNone};
  for (const Unit& time : kTimes)
    if (unit == time.name) return Quantity{time.factor, Dimension::kTime};
  const auto per_second = [&](std::string_view what, double factor,
                              Dimension dimension) -> std::optional<Quantity> {
    if (!unit.ends_with(what)) return std::nullopt;
    const double prefix = PrefixOf(unit.substr(0, unit.size() - what.size()));
    if (prefix == 0) return std::nullopt;
    return Quantity{prefix * factor, dimension};
  };
  if (const auto found = per_second("FLOP/s", 1, Dimension::kFlops)) return found;
  if (const auto found = per_second("B/s", 1, Dimension::kBandwidth)) return found;
  if (const auto found = per_second("bit/s", 0.125, Dimension::kBandwidth)) return found;
  if (const auto bytes = BytesOf(unit)) return Quantity{*bytes, Dimension::kBytes};
  return std::nullopt;
}

}  // namespace

std::optional<Quantity> ReadQuantity(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  auto unit = UnitOf(text.substr(static_cast<size_t>(end - text.data())));
  if (unit) unit->value *= number;
  return unit && std::isfinite(unit->value) ? unit : std::nullopt;
}

std::string ToText(const Quantity& quantity) {
  if (quantity.dimension == Dimension::kNone) return fmt::format("{:.10g}", quantity.value);
  if (quantity.dimension == Dimension::kTime) {
    const Unit* unit = kTimes;
    while (unit->factor < 1 && quantity.value >= unit[1].factor) ++unit;
    return fmt::format("{:.10g}{}", quantity.value / unit->factor, unit->name);
  }
  const bool bytes = quantity.dimension == Dimension::kBytes;
  // Whole MiB are meant as such.
  const bool binary = bytes && std::fmod(quantity.value, 1 << 20) == 0;
  const double base = binary ? 1024 : 1000;
  double value = quantity.value;
  size_t power = 0;
  for (; power < kPrefixes.size() && value >= base; ++power) value /= base;
  return fmt::format("{:.10g}{}{}{}", value, power > 0 ? kPrefixes.substr(power - 1, 1) : "",
                     binary && power > 0 ? "i" : "",
                     bytes                                         ? "B"
                     : quantity.dimension == Dimension::kBandwidth ? "B/s"
                                                                   : "FLOP/s");
}

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; bytes >= 999.5 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

}  // namespace pp
