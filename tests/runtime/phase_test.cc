// Phases after the last step, also of a run that has failed in the middle of one.
#include "runtime/comm/phase.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/shm_transport.h"

namespace pp {
namespace {

TEST_CASE("a phase does not meet what a failed run has left under way") {
  const auto segment = ShmSegment::Create(2);
  REQUIRE(segment.ok());
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int rank : {0, 1}) ranks.push_back(MakeShmTransport(*segment, rank));
  // Nobody sends these.
  std::vector<int> left(2 * kChannels);
  for (int rank : {0, 1})
    for (const Channel channel :
         {Channel::kAct, Channel::kGrad, Channel::kReduce, Channel::kPeers}) {
      int& value = left[rank * kChannels + static_cast<int>(channel)];
      REQUIRE(ranks[rank]->Start({Way::kRecv, channel, 1 - rank}, &value, sizeof value).ok());
    }
  int got = 0;
  std::vector<Status> agreed(2);
  const auto run = [&](int rank, const std::function<Status(Exchange&)>& work) {
    agreed[rank] =
        RunPhase({.transport = ranks[rank].get(), .patience = 10, .work = [&](Exchange* exchange) {
                    return Readiness{.status = work(*exchange)};
                  }});
  };
  std::thread other([&] {
    run(1, [](Exchange& exchange) {
      const int value = 42;
      return exchange.Send(0, &value, sizeof value);
    });
  });
  run(0, [&](Exchange& exchange) { return exchange.Receive(1, &got, sizeof got); });
  other.join();
  CHECK(agreed[0].message() == "");
  CHECK(agreed[1].message() == "");
  CHECK(got == 42);
}

}  // namespace
}  // namespace pp
