// One transfer of a rank, from its start to its end.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>

#include "runtime/comm/clock.h"
#include "runtime/comm/transport.h"

namespace pp {

// Waits for it. Failed: it is not over within `seconds`; then it is abandoned.
inline Status Transfer(Transport& transport, const Port& port, void* data, int64_t bytes,
                       double seconds) {
  PP_RETURN_IF_ERROR(transport.CheckUsable());
  const std::shared_ptr<char[]> buffer(new char[bytes]);
  if (port.way == Way::kSend && bytes > 0) std::memcpy(buffer.get(), data, bytes);
  const double end = SteadySeconds() + seconds;
  PP_RETURN_IF_ERROR(transport.Start(port, buffer.get(), bytes));
  while (true) {
    const uint64_t seen = transport.bell().rings();
    bool over = false;
    PP_RETURN_IF_ERROR(transport.Test(port, &over));
    if (over) break;
    if (SteadySeconds() > end) {
      transport.Abandon(buffer);
      return Status::Failed(fmt::format("rank {}: no answer from rank {} for {} s",
                                        transport.rank(), port.peer, seconds));
    }
    const std::chrono::microseconds nap(transport.polls() ? 50 : 100000);
    transport.bell().WaitFor(seen, transport.MaySleep(nap));
  }
  if (port.way == Way::kRecv && bytes > 0) std::memcpy(data, buffer.get(), bytes);
  return {};
}

}  // namespace pp
