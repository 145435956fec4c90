// Numbers with units in texts from users and files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pp {

enum class Dimension : uint8_t { kNone, kTime, kBytes, kBandwidth, kFlops };

struct Quantity {
  double value = 0;  // in seconds, bytes, bytes per second, operations per second
  Dimension dimension = Dimension::kNone;
};

// A number of at least 0, alone or followed by its unit:
//   time        10ms           ns, us, ms, s
//   bytes       40GiB, 40G     B; KB, MB, GB, TB of powers of 1000; KiB, K, MiB, M ... of 1024; in
//                              letters of either case
//   bandwidth   100GB/s        the same with an i, or B for bytes, or bit/s; as they are written
//   operations  312TFLOP/s     FLOP/s with K, M, G, T or P, of powers of 1000
std::optional<Quantity> ReadQuantity(std::string_view text);
// The same text, with the prefix that makes the number at least 1 and small.
std::string ToText(const Quantity& quantity);
// For people: "1.5 GiB", to three digits.
std::string BytesText(double bytes);

}  // namespace pp
