#include "tests/transport_conformance.h"

#include <fmt/format.h>

#include <numeric>
#include <utility>
#include <vector>

#include "runtime/comm/agree.h"
#include "tests/transfer.h"

namespace pp {
namespace {

constexpr double kSeconds = 30;

std::vector<uint32_t> Pattern(int from, int to, int salt, size_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(),
            static_cast<uint32_t>((from * 64 + to) * 64 + salt) << 12);
  return numbers;
}

template <typename T>
int64_t Bytes(const std::vector<T>& numbers) {
  return static_cast<int64_t>(numbers.size() * sizeof(T));
}

// Tests all ports until all are over.
Status FinishAll(Transport& transport, std::vector<Port> ports) {
  int quiet = 0;
  while (!ports.empty()) {
    const uint64_t seen = transport.bell().rings();
    const size_t before = ports.size();
    for (size_t i = 0; i < ports.size();) {
      bool over = false;
      PP_RETURN_IF_ERROR(transport.Test(ports[i], &over));
      over ? void(ports.erase(ports.begin() + static_cast<std::ptrdiff_t>(i))) : void(++i);
    }
    if (ports.size() != before) continue;
    if (++quiet > 200000) return Status::Failed("transfers do not end");
    transport.bell().WaitFor(seen, std::chrono::microseconds(100));
  }
  return {};
}

// A ring: each rank sends right and receives from the left, sizes from zero to large.
Status Ring(Transport& transport) {
  const int ranks = transport.ranks(), rank = transport.rank();
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  for (const size_t count : {0, 1, 100, 5000, 1 << 20}) {
    auto out = Pattern(rank, right, 1, count);
    std::vector<uint32_t> in(count);
    PP_RETURN_IF_ERROR(transport.Start({Way::kRecv, Channel::kAct, left}, in.data(), Bytes(in)));
    PP_RETURN_IF_ERROR(transport.Start({Way::kSend, Channel::kAct, right}, out.data(), Bytes(out)));
    PP_RETURN_IF_ERROR(FinishAll(
        transport, {{Way::kRecv, Channel::kAct, left}, {Way::kSend, Channel::kAct, right}}));
    if (in != Pattern(left, rank, 1, count))
      return Status::Failed(fmt::format("ring: {} numbers arrive damaged", count));
  }
  return {};
}

// Everybody with everybody, on all channels concurrently.
Status Everybody(Transport& transport) {
  const int ranks = transport.ranks(), rank = transport.rank();
  std::vector<std::vector<uint32_t>> in, out;
  std::vector<Port> ports;
  for (const Channel channel : {Channel::kAct, Channel::kGrad, Channel::kReduce, Channel::kControl})
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const int salt = 10 + static_cast<int>(channel);
      out.push_back(Pattern(rank, peer, salt, 777));
      in.emplace_back(777);
      ports.push_back({Way::kSend, channel, peer});
      PP_RETURN_IF_ERROR(transport.Start(ports.back(), out.back().data(), Bytes(out.back())));
      ports.push_back({Way::kRecv, channel, peer});
      PP_RETURN_IF_ERROR(transport.Start(ports.back(), in.back().data(), Bytes(in.back())));
    }
  PP_RETURN_IF_ERROR(FinishAll(transport, ports));
  size_t next = 0;
  for (const Channel channel : {Channel::kAct, Channel::kGrad, Channel::kReduce, Channel::kControl})
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank && in[next++] != Pattern(peer, rank, 10 + static_cast<int>(channel), 777))
        return Status::Failed("channels or peers are mixed up");
  return {};
}

// Many small transfers arrive in the order in which they were sent.
Status Order(Transport& transport) {
  const int rank = transport.rank();
  for (int32_t i = 0; rank < 2 && i < 300; ++i) {
    int32_t number = rank == 0 ? i : -1;
    PP_RETURN_IF_ERROR(Transfer(transport,
                                {rank == 0 ? Way::kSend : Way::kRecv, Channel::kAct, 1 - rank},
                                &number, sizeof number, kSeconds));
    if (number != i) return Status::Failed(fmt::format("message {} comes as number {}", number, i));
  }
  return {};
}

// A send is not over before its receive has started. Rank 0 tests 100 times while rank 1 waits for
// its message on another channel.
Status Rendezvous(Transport& transport) {
  const int rank = transport.rank();
  const Port message{rank == 0 ? Way::kSend : Way::kRecv, Channel::kAct, 1 - rank};
  const Port word{rank == 0 ? Way::kSend : Way::kRecv, Channel::kControl, 1 - rank};
  int32_t number = 7, go = 0;
  if (rank == 0) {
    PP_RETURN_IF_ERROR(transport.Start(message, &number, sizeof number));
    for (int i = 0; i < 100; ++i) {
      bool over = false;
      PP_RETURN_IF_ERROR(transport.Test(message, &over));
      if (over) return Status::Failed("a send is over before its receive has started");
    }
    PP_RETURN_IF_ERROR(Transfer(transport, word, &go, sizeof go, kSeconds));
    return FinishAll(transport, {message});
  }
  if (rank == 1) {
    PP_RETURN_IF_ERROR(Transfer(transport, word, &go, sizeof go, kSeconds));
    return Transfer(transport, message, &number, sizeof number, kSeconds);
  }
  return {};
}

Status Agreement(Transport& transport) {
  const int rank = transport.rank(), last = transport.ranks() - 1;
  const auto bring = [](Status status, uint64_t digest) {
    return Readiness{.status = std::move(status), .items = {{"--seed", digest}}};
  };
  PP_RETURN_IF_ERROR(Agree(transport, kSeconds, bring({}, 5)).In("agree"));
  Status status =
      Agree(transport, kSeconds, bring(rank == last ? Status::Invalid("x") : Status(), 5));
  if (status.code() != Code::kInvalid || status.message() != "x")
    return Status::Failed("agree: not the last rank's error");
  status = Agree(transport, kSeconds, bring({}, rank == last ? 6 : 5));
  if (status.message() !=
      fmt::format("--seed: rank {} has a different one from rank 0 (the same on all ranks)", last))
    return Status::Failed("agree: different items give: " + status.message());
  return {};
}

}  // namespace

Status CheckTransport(Transport& transport) {
  if (transport.ranks() < 2) return Status::Failed("needs two ranks or more");
  PP_RETURN_IF_ERROR(Ring(transport));
  PP_RETURN_IF_ERROR(Everybody(transport));
  PP_RETURN_IF_ERROR(Order(transport));
  PP_RETURN_IF_ERROR(Rendezvous(transport));
  return Agreement(transport);
}

}  // namespace pp
