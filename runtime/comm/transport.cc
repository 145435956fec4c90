#include "runtime/comm/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/comm/clock.h"

namespace pp {

Status Transport::CheckUsable() const {
  if (abandoned_.empty()) return {};
  return Status::Failed(fmt::format("rank {}: an earlier exchange had no answer", rank_));
}

std::chrono::nanoseconds Transport::MaySleep(std::chrono::nanoseconds longest) const {
  const double wake = wake_at();
  if (std::isinf(wake)) return longest;
  // Waiting an hour is enough, and does not overflow.
  const double left = std::clamp(wake - SteadySeconds(), 0.0, 3600.0);
  return std::min(longest, std::chrono::nanoseconds(static_cast<int64_t>(std::ceil(1e9 * left))));
}

bool Transport::Blames(int peer, const Status& error) const {
  return std::find(blamed_.begin(), blamed_.end(), std::pair(peer, error.message())) !=
         blamed_.end();
}

}  // namespace pp
