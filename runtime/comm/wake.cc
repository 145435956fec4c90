#include <algorithm>
#include <cmath>

#include "runtime/comm/clock.h"
#include "runtime/comm/transport.h"

namespace pp {

std::chrono::nanoseconds Transport::MaySleep(std::chrono::nanoseconds longest) const {
  const double wake = wake_at();
  if (std::isinf(wake)) return longest;
  // Waiting an hour is enough, and does not overflow.
  const double left = std::clamp(wake - SteadySeconds(), 0.0, 3600.0);
  return std::min(longest, std::chrono::nanoseconds(static_cast<int64_t>(std::ceil(1e9 * left))));
}

}  // namespace pp
