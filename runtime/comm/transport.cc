#include "runtime/comm/transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

namespace pp {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks reach an agreement at about the same time, but one may still be reading weights.
constexpr double kAgreeSeconds = 600;

struct Opinion {
  int32_t code = 0;
  uint64_t fingerprint = 0;
  char text[1024] = {};
};

Opinion ToOpinion(const Status& status, uint64_t fingerprint) {
  Opinion opinion{static_cast<int32_t>(status.code()), fingerprint, {}};
  const size_t length = std::min(status.message().size(), sizeof(opinion.text) - 1);
  std::memcpy(opinion.text, status.message().data(), length);
  return opinion;
}

Status ToStatus(const Opinion& opinion) {
  switch (static_cast<Code>(opinion.code)) {
    case Code::kOk:
      return {};
    case Code::kFailed:
      return Status::Failed(opinion.text);
    case Code::kInvalid:
      return Status::Invalid(opinion.text);
  }
  return {};
}

}  // namespace

Status Transfer(Transport& transport, const Port& port, void* data, int64_t bytes, double seconds) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  PP_RETURN_IF_ERROR(transport.Start(port, data, bytes));
  while (true) {
    const uint64_t seen = transport.bell().rings();
    bool over = false;
    PP_RETURN_IF_ERROR(transport.Test(port, &over));
    if (over) return {};
    if (Clock::now() > end)
      return Status::Failed(fmt::format("rank {}: no answer from rank {} for {} s",
                                        transport.rank(), port.peer, seconds));
    const std::chrono::microseconds nap(transport.polls() ? 50 : 100000);
    transport.bell().WaitFor(seen, transport.MaySleep(nap));
  }
}

Status Agree(Transport& transport, const Status& status, uint64_t fingerprint) {
  Opinion mine = ToOpinion(status, fingerprint);
  if (transport.rank() != 0) {
    PP_RETURN_IF_ERROR(
        Transfer(transport, {Way::kSend, Channel::kControl, 0}, &mine, sizeof mine, kAgreeSeconds));
    PP_RETURN_IF_ERROR(
        Transfer(transport, {Way::kRecv, Channel::kControl, 0}, &mine, sizeof mine, kAgreeSeconds));
    return ToStatus(mine);
  }
  for (int rank = 1; rank < transport.ranks(); ++rank) {
    Opinion other;
    PP_RETURN_IF_ERROR(Transfer(transport, {Way::kRecv, Channel::kControl, rank}, &other,
                                sizeof other, kAgreeSeconds));
    if (mine.code != 0) continue;
    if (other.code != 0) {
      mine = other;
    } else if (other.fingerprint != fingerprint) {
      mine = ToOpinion(Status::Invalid(fmt::format(
                           "rank {}: its plan or its options differ from those of rank 0", rank)),
                       0);
    }
  }
  for (int rank = 1; rank < transport.ranks(); ++rank)
    PP_RETURN_IF_ERROR(Transfer(transport, {Way::kSend, Channel::kControl, rank}, &mine,
                                sizeof mine, kAgreeSeconds));
  return ToStatus(mine);
}

}  // namespace pp
