#include <catch2/catch.hpp>
#include <thread>

#include "runtime/comm/in_process_transport.h"
#include "runtime/comm/shm_transport.h"
#include "tests/transfer.h"
#include "tests/transport_conformance.h"

namespace pp {
namespace {

using Transports = std::vector<std::unique_ptr<Transport>>;

void CheckOnThreads(const Transports& transports) {
  const size_t ranks = transports.size();
  std::vector<Status> results(ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { results[rank] = CheckTransport(*transports[rank]); });
  for (auto& thread : threads) thread.join();
  for (const Status& result : results) {
    INFO(result.message());
    CHECK(result.ok());
  }
}

TEST_CASE("threads of one process") {
  const int ranks = GENERATE(2, 3, 4, 8);
  CheckOnThreads(MakeInProcessTransports(ranks));
}

TEST_CASE("shared memory") {
  const int ranks = GENERATE(2, 3, 4, 8);
  const ShmCopy copy = GENERATE(ShmCopy::kDirect, ShmCopy::kInPieces);
  auto segment = ShmSegment::Create(ranks);
  REQUIRE(segment.ok());
  Transports transports;
  for (int rank = 0; rank < ranks; ++rank)
    transports.push_back(MakeShmTransport(*segment, rank, copy));
  CheckOnThreads(transports);
}

TEST_CASE("a peer that does not come") {
  auto transports = MakeInProcessTransports(2);
  int number = 0;
  CHECK(Transfer(*transports[0], {Way::kSend, Channel::kAct, 1}, &number, sizeof number, 0.05)
            .message() == "rank 0: no answer from rank 1 for 0.05 s");
}

}  // namespace
}  // namespace pp
