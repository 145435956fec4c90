// Phases after the last step, also of a run that has failed in the middle of one.
#include "runtime/comm/phase.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <new>
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
  Worker workers[2];
  const auto run = [&](int rank, const std::function<Status(Exchange&)>& work) {
    agreed[rank] = RunPhase(
        {.transport = ranks[rank].get(),
         .patience = 10,
         .worker = &workers[rank],
         .work = [&](Exchange* exchange) { return Readiness{.status = work(*exchange)}; }});
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

TEST_CASE("a rank whose work fails is waited for by nobody, and its error is everybody's") {
  for (const int fails : {0, 1, 2}) {
    const auto segment = ShmSegment::Create(3);
    REQUIRE(segment.ok());
    std::vector<Status> agreed(3), later(3);
    std::vector<std::thread> threads;
    for (int rank : {0, 1, 2})
      threads.emplace_back([&, rank] {
        const auto transport = MakeShmTransport(*segment, rank);
        Worker worker;
        // Rank 0 receives from 1, and then from 2.
        const auto work = [&](Exchange* exchange) -> Readiness {
          int value = 0;
          if (rank == fails) return {.status = Status::Failed("the disk is full")};
          Status status;
          for (int peer = 1; status.ok() && peer <= 2; ++peer) {
            if (rank == 0) status = exchange->Receive(peer, &value, sizeof value);
            if (rank == peer) status = exchange->Send(0, &value, sizeof value);
          }
          return {.status = status};
        };
        const PhaseArgs args{
            .transport = transport.get(), .patience = 100, .worker = &worker, .work = work};
        agreed[rank] = RunPhase(args);
        // What is under way there is nobody's any more.
        later[rank] = RunPhase(args);
        transport->Settle(100);
      });
    for (std::thread& thread : threads) thread.join();
    for (int rank : {0, 1, 2}) {
      INFO(fails << " " << rank);
      CHECK(agreed[rank].message() == "the disk is full");
      CHECK_FALSE(later[rank].ok());
    }
  }
}

TEST_CASE("a phase without memory for its work fails") {
  Worker worker;
  const Status status =
      RunPhase({.worker = &worker, .work = [](Exchange*) -> Readiness { throw std::bad_alloc(); }});
  CHECK_THAT(status.message(), Catch::StartsWith("out of memory"));
}

}  // namespace
}  // namespace pp
