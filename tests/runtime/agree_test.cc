// Ranks that become ready together, or not at all.
#include "runtime/comm/agree.h"

#include <catch2/catch.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/clock.h"
#include "runtime/comm/host_memory.h"
#include "runtime/comm/in_process_transport.h"
#include "tests/transfer.h"

namespace pp {
namespace {

TEST_CASE("a rank that does not answer is named, and nothing is touched afterwards") {
  auto ranks = MakeInProcessTransports(2);
  Status first = Agree(*ranks[0], 0.3, Readiness());
  CHECK(first.code() == Code::kFailed);
  CHECK(first.message() == "rank 0: no answer from rank 1 for 0.3 s");
  // The transfer is still there, and its buffer, too.
  CHECK(Agree(*ranks[0], 0.3, Readiness()).message() ==
        "rank 0: an earlier exchange had no answer");
  int number = 0;
  CHECK(Transfer(*ranks[0], {Way::kSend, Channel::kControl, 1}, &number, sizeof number, 1)
            .message() == "rank 0: an earlier exchange had no answer");
  CHECK(Agree(*ranks[1], 0.3, Readiness()).message() == "rank 1: no answer from rank 0 for 0.3 s");
}

TEST_CASE("a transfer that is not answered keeps its bytes") {
  auto ranks = MakeInProcessTransports(2);
  {
    std::vector<char> bytes(1000, 'x');
    CHECK(Transfer(*ranks[0], {Way::kRecv, Channel::kControl, 1}, bytes.data(), 1000, 0.1)
              .message() == "rank 0: no answer from rank 1 for 0.1 s");
  }
  std::vector<char> late(1000, 'y');
  CHECK(Transfer(*ranks[1], {Way::kSend, Channel::kControl, 0}, late.data(), 1000, 0.1).ok());
}

TEST_CASE("a rank may take longer than the patience of the others, as long as it lives") {
  auto ranks = MakeInProcessTransports(3);
  const double patience = 2, begin = SteadySeconds();
  std::vector<Status> got(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r)
    threads.emplace_back([&, r] {
      got[r] = Agree(*ranks[r], patience, [&]() -> std::optional<Readiness> {
        if (r == 2 && SteadySeconds() - begin < 1.25 * patience) return std::nullopt;
        return Readiness();
      });
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : got) CHECK(status.message() == "");
}

TEST_CASE("the first rank's error is everybody's, then the first item that differs") {
  auto ranks = MakeInProcessTransports(4);
  auto all = [&](const std::vector<Readiness>& bring) {
    std::vector<Status> got(4);
    std::vector<std::thread> threads;
    for (int r = 0; r < 4; ++r)
      threads.emplace_back([&, r] { got[r] = Agree(*ranks[r], 30, bring[r]); });
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : got) {
      CHECK(status.message() == got[0].message());
      CHECK(status.code() == got[0].code());
    }
    return got[0];
  };
  const Readiness good{.items = {{"--lr", 1}, {"--data", 2}}};
  std::vector<Readiness> bring(4, good);
  CHECK(all(bring).ok());
  bring[3].items[0].digest = 7;
  bring[2].items[1].digest = 7;
  CHECK(all(bring).message() ==
        "--data: rank 2 has a different one from rank 0 (the same on all ranks)");
  bring[1].status = Status::Failed("one");
  bring[2].status = Status::Invalid("two");
  CHECK(all(bring).message() == "one");
  CHECK(all(bring).code() == Code::kFailed);
  bring = {4, good};
  bring[0].gpu = bring[2].gpu = 5;
  bring[1].gpu = 6;
  CHECK(all(bring).message() ==
        "--transport: ranks 0 and 2 have one GPU, where NCCL takes a single rank (shm or mpi, or a "
        "GPU for each rank)");
  bring = {4, good};
  bring[0].bytes = {1, 1, 1, int64_t{1} << 60};
  CHECK_THAT(
      all(bring).message(),
      Catch::StartsWith("the plan takes 1152921504606846979 bytes on the 4 ranks of rank 0's "
                        "host, of which "));
}

TEST_CASE("the ranks of a host share its memory") {
  const std::vector<HostMemory> hosts = {{7, 100}, {8, 50}, {7, 90}, {8, 60}};
  CHECK(CheckMemory(hosts, std::vector<int64_t>{45, 25, 45, 25}).ok());
  CHECK(CheckMemory(hosts, std::vector<int64_t>{46, 25, 45, 25}).message() ==
        "the plan takes 91 bytes on the 2 ranks of rank 0's host, of which 90 are free (fewer "
        "ranks a "
        "host, or pipec compile --memory-limit)");
  CHECK_THAT(CheckMemory(hosts, std::vector<int64_t>{1, 1, 1, 50}).message(),
             Catch::Contains("51 bytes on the 2 ranks of rank 1's host, of which 50"));
  const HostMemory here = ThisHost();
  CHECK(here.host == ThisHost().host);
  CHECK(here.free_bytes > 1 << 20);
  CHECK(here.free_bytes < int64_t{1} << 50);
}

TEST_CASE("the ranks of a process share its limit, those of a host do not") {
  const HostMemory own{.host = 7, .free_bytes = 1000, .limit_bytes = 80, .left_bytes = 50},
      free{.host = 7, .free_bytes = 1000, .process = 9};
  std::vector<HostMemory> hosts(4, own);
  CHECK(CheckMemory(hosts, std::vector<int64_t>{10, 20, 10, 10}).ok());
  CHECK(CheckMemory(hosts, std::vector<int64_t>{11, 20, 10, 10}).message() ==
        "the plan takes 51 bytes in rank 0's process, whose address space is limited to 80 bytes, "
        "of which 50 are left (a larger ulimit -v, or pipec compile --memory-limit)");
  hosts[0] = free;
  for (uint64_t rank = 1; rank < 4; ++rank) hosts[rank].process = rank;
  CHECK(CheckMemory(hosts, std::vector<int64_t>{500, 50, 50, 50}).ok());
  CHECK_THAT(CheckMemory(hosts, std::vector<int64_t>{500, 50, 51, 50}).message(),
             Catch::StartsWith("the plan takes 51 bytes in rank 2's process"));
  CHECK(ThisHost().process != ThisHost().process);
}

}  // namespace
}  // namespace pp
