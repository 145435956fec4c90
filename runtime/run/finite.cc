#include "runtime/run/finite.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace pp {

Status CheckFinite(const std::string& what, int64_t first, std::span<const float> numbers) {
  // Without a branch per number, so that it takes less time than the copy before it.
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t bad = 0;
  for (const float number : numbers)
    bad |= (std::bit_cast<uint32_t>(number) & kExponent) == kExponent;
  if (bad == 0) return {};
  size_t at = 0;
  while (std::isfinite(numbers[at])) ++at;
  const float number = numbers[at];  // without the sign that a NaN may have
  return Status::Failed(fmt::format("{}: element {} is {}", what, first + static_cast<int64_t>(at),
                                    std::isnan(number) ? std::abs(number) : number));
}

}  // namespace pp
