#include <catch2/catch.hpp>
#include <thread>

#include "runtime/comm/agree.h"
#include "runtime/comm/clock.h"
#include "runtime/comm/in_process_transport.h"
#include "runtime/comm/slow_transport.h"
#include "tests/transfer.h"
#include "tests/transport_conformance.h"

namespace pp {
namespace {

constexpr double kSeconds = 30;
constexpr Port kOut{Way::kSend, Channel::kAct, 1};
constexpr Port kIn{Way::kRecv, Channel::kAct, 0};

// Ranks as threads with a slow network between them.
struct Ranks {
  Ranks(int ranks, const std::string& network) : fast(MakeInProcessTransports(ranks)) {
    const auto parsed = ParseNetwork(network);
    REQUIRE(parsed.ok());
    for (auto& transport : fast) slow.push_back(MakeSlowTransport(transport.get(), *parsed));
  }
  Transport& operator[](int rank) { return *slow[rank]; }
  std::vector<std::unique_ptr<Transport>> fast, slow;
};

TEST_CASE("a slow network is a transport") {
  const int ranks = GENERATE(2, 4);
  Ranks all(ranks, "latency=50us,bandwidth=1GB/s");
  std::vector<Status> results(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { results[rank] = CheckTransport(all[rank]); });
  for (auto& thread : threads) thread.join();
  for (const Status& result : results) {
    INFO(result.message());
    CHECK(result.ok());
  }
}

TEST_CASE("a message takes its time") {
  Ranks ranks(2, "latency=30ms,bandwidth=10MB/s");
  std::vector<char> out(500000), in(500000);  // 50 ms
  const double start = SteadySeconds();
  double sent = 0;
  Status sending;
  std::thread sender([&] {
    sending = Transfer(ranks[0], kOut, out.data(), 500000, kSeconds);
    sent = SteadySeconds();
  });
  CHECK(Transfer(ranks[1], kIn, in.data(), 500000, kSeconds).ok());
  CHECK(SteadySeconds() - start >= 0.08);
  sender.join();
  CHECK(sending.ok());
  CHECK(sent - start >= 0.05);
}

// The send is over, and the channel free for the next one, although the receive still has years to
// wait.
TEST_CASE("latency does not occupy the channel") {
  Ranks ranks(2, "latency=1e9s");
  int out[2] = {1, 2}, in = 0;
  bool over = true;
  CHECK(ranks[1].Start(kIn, &in, sizeof in).ok());
  CHECK(std::isinf(ranks[1].wake_at()));
  CHECK(Transfer(ranks[0], kOut, &out[0], sizeof out[0], kSeconds).ok());
  CHECK(std::isinf(ranks[0].wake_at()));
  CHECK(ranks[0].Start(kOut, &out[1], sizeof out[1]).ok());
  CHECK(ranks[1].Test(kIn, &over).ok());
  CHECK(!over);
  CHECK(ranks[1].wake_at() - SteadySeconds() > 0.9e9);
  CHECK(ranks[1].MaySleep(std::chrono::milliseconds(5)) == std::chrono::milliseconds(5));
  CHECK(ranks[1].MaySleep(std::chrono::nanoseconds::max()) == std::chrono::hours(1));
}

TEST_CASE("control messages are not slow") {
  Ranks ranks(2, "latency=1e9s,bandwidth=1B/s");
  Status there;
  std::thread other([&] { there = Agree(ranks[1], kSeconds, Readiness()); });
  CHECK(Agree(ranks[0], kSeconds, Readiness()).ok());
  other.join();
  CHECK(there.ok());
}

TEST_CASE("networks in words") {
  auto check = [](const char* text, double latency, double bandwidth) {
    INFO(text);
    const auto network = ParseNetwork(text);
    REQUIRE(network.ok());
    CHECK(network->latency == Approx(latency));
    CHECK(network->seconds_per_byte == Approx(bandwidth == 0 ? 0 : 1 / bandwidth));
  };
  check("latency=50us,bandwidth=1GB/s", 50e-6, 1e9);
  check("bandwidth=1.5KiB/s", 0, 1536);
  check("latency=0s", 0, 0);
  check("bandwidth=2MiB/s,latency=3ns", 3e-9, 2097152);
  check("latency=7ms", 7e-3, 0);
  check("bandwidth=8B/s", 0, 8);
  for (const std::string wrong :
       {"", "latency=x", "latency=50", "latency", "latency=-1s", "delay=1s", "latency=infs",
        "latency=1sec", "bandwidth=1GB", "bandwidth=0B/s"}) {
    const std::string want = "'" + wrong + "' (latency=50us,bandwidth=1GB/s)";
    CHECK(ParseNetwork(wrong).status().message() == want);
    if (!wrong.empty()) CHECK(ParseNetwork("latency=1s," + wrong).status().message() == want);
  }
}

}  // namespace
}  // namespace pp
