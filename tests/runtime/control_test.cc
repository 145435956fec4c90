// What ranks tell each other: messages around rank 0, and what is collected at the end. All ranks
// are in one thread, except where a call waits for others.
#include "runtime/run/control.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/comm/in_process_transport.h"
#include "runtime/run/gather.h"

namespace pp {
namespace {

using Type = ControlMessage::Type;

struct Heard {
  int at, from;
  Type type;
  int64_t step;
  bool operator==(const Heard&) const = default;
};

struct Star {
  explicit Star(int ranks) : transports(MakeInProcessTransports(ranks)) {
    for (int rank = 0; rank < ranks; ++rank)
      controls.push_back(std::make_unique<Control>(
          transports[rank].get(), [this, rank](int from, const ControlMessage& message) {
            heard.push_back({rank, from, message.type, message.step});
            last = message;
          }));
  }
  // Until nothing moves.
  void Advance() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& control : controls) REQUIRE(control->Advance(&moved).ok());
    }
  }
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<std::unique_ptr<Control>> controls;
  std::vector<Heard> heard;
  ControlMessage last;
};

// Rank 0's end of a transport on which one peer fails.
class WithoutPeer : public Transport {
 public:
  WithoutPeer(Transport* inner, int peer)
      : Transport(inner->rank(), inner->ranks()), inner_(*inner), peer_(peer) {}
  Status Start(const Port& port, void* data, int64_t bytes) override {
    return inner_.Start(port, data, bytes);
  }
  Status Test(const Port& port, bool* over) override {
    return port.peer == peer_ ? Status::Failed("gone") : inner_.Test(port, over);
  }
  bool polls() const override { return inner_.polls(); }
  void Settle(double) override {}

 private:
  Transport& inner_;
  const int peer_;
};

}  // namespace

TEST_CASE("messages arrive whole and in order, both ways at once") {
  Star star(3);
  for (int64_t step = 1; step <= 5; ++step) {
    star.controls[0]->PostAll({.type = Type::kGo, .step = step});
    star.controls[2]->Post(0, {.type = Type::kReport, .step = step});
  }
  star.Advance();
  for (const auto& [at, from] : {std::pair{1, 0}, std::pair{2, 0}, std::pair{0, 2}}) {
    std::vector<int64_t> steps;
    for (const Heard& heard : star.heard)
      if (heard.at == at && heard.from == from) steps.push_back(heard.step);
    CHECK(steps == std::vector<int64_t>{1, 2, 3, 4, 5});
  }
  CHECK(star.heard.size() == 15);
  ControlMessage full{.type = Type::kReport,
                      .code = 1,
                      .step = 2,
                      .last = 3,
                      .peak_bytes = 4,
                      .executed = 5,
                      .loss = 6.5,
                      .grad_norm = 7.5,
                      .seconds = 8.5,
                      .bad_micro = 9,
                      .bad_loss = 10.5};
  std::strcpy(full.text, "'FW s0 m0'");
  star.controls[1]->Post(0, full);
  star.Advance();
  CHECK(std::memcmp(&star.last, &full, sizeof full) == 0);
}

TEST_CASE("a rank that fails does not keep the others from hearing of it") {
  Star star(4);
  WithoutPeer transport(star.transports[0].get(), 1);
  Control zero(&transport, [](int, const ControlMessage&) {});
  bool moved = false;
  CHECK(zero.Advance(&moved).ok());
  zero.PostAll({.type = Type::kFail, .step = 7});
  for (int i = 0; i < 3; ++i) {
    CHECK(zero.Advance(&moved).message() == "gone");
    for (int rank = 1; rank < 4; ++rank) CHECK(star.controls[rank]->Advance(&moved).ok());
  }
  for (int rank : {2, 3})
    CHECK(std::count(star.heard.begin(), star.heard.end(), Heard{rank, 0, Type::kFail, 7}) == 1);
}

TEST_CASE("signs are dropped where many messages wait, others are not") {
  Star star(2);
  for (int i = 0; i < 100; ++i) star.controls[1]->Post(0, {.type = Type::kHeartbeat});
  for (int64_t step = 1; step <= 10; ++step)
    star.controls[1]->Post(0, {.type = Type::kReport, .step = step});
  star.Advance();
  int64_t signs = 0, reports = 0;
  for (const Heard& heard : star.heard) {
    signs += heard.type == Type::kHeartbeat;
    if (heard.type == Type::kReport) CHECK(heard.step == ++reports);
  }
  CHECK(reports == 10);
  CHECK(signs > 0);
  CHECK(signs < 100);
}

TEST_CASE("nothing goes after a good-bye, and all is closed when all have said it") {
  Star star(3);
  star.controls[1]->PostAll({.type = Type::kBye});
  star.controls[1]->PostAll({.type = Type::kReport, .step = 9});
  star.Advance();
  CHECK(star.heard == std::vector<Heard>{{0, 1, Type::kBye, 0}});
  CHECK_FALSE(star.controls[0]->others_left());
  CHECK_FALSE(star.controls[1]->closed());
  // The others continue.
  star.controls[2]->Post(0, {.type = Type::kReport, .step = 1});
  star.controls[0]->PostAll({.type = Type::kGo, .step = 2});
  star.Advance();
  CHECK(star.heard.size() == 4);
  star.controls[2]->PostAll({.type = Type::kBye});
  star.Advance();
  CHECK(star.controls[0]->others_left());
  CHECK_FALSE(star.controls[0]->closed());
  star.controls[0]->PostAll({.type = Type::kBye});
  star.Advance();
  for (auto& control : star.controls) CHECK(control->closed());
}

TEST_CASE("one rank has nobody to talk to") {
  Star star(1);
  star.controls[0]->PostAll({.type = Type::kBye});
  star.Advance();
  CHECK(star.controls[0]->others_left());
  CHECK(star.controls[0]->closed());
  CHECK(star.heard.empty());
}

TEST_CASE("rank 0 leaves with the times and events of all ranks, in rank order") {
  constexpr int kRanks = 3;
  auto transports = MakeInProcessTransports(kRanks);
  std::vector<std::vector<TimeSpent>> times(kRanks);
  std::vector<std::vector<Event>> events(kRanks);
  std::vector<std::vector<ValueRecord>> records(kRanks);
  std::vector<Status> statuses(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    TimeSpent time;
    time.total = rank + 0.5;
    time.communication[CommKind::kNorm].exposed = rank;
    times[rank] = {time};
    // As many as its index: rank 1 has none.
    for (int k = 0; k < (rank == 1 ? 0 : rank + 1); ++k)
      events[rank].push_back({.rank = rank, .index = k, .start = 100.0 + k, .duration = 1});
    records[rank].resize(2, {.copy = rank});
  }
  std::vector<std::thread> threads;
  std::vector<Worker> workers(kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      statuses[rank] =
          RunPhase({.transport = transports[rank].get(),
                    .patience = 10,
                    .worker = &workers[rank],
                    .work =
                        [&, rank](Exchange* exchange) {
                          return Readiness{.status = GatherReports(*exchange, &times[rank],
                                                                   &events[rank], &records[rank])};
                        },
                    .on_poll = {}});
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) CHECK(status.message() == "");
  REQUIRE(records[0].size() == 2 * kRanks);
  for (int i = 0; i < 2 * kRanks; ++i) CHECK(records[0][i].copy == i / 2);
  REQUIRE(times[0].size() == kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    CHECK(times[0][rank].total == rank + 0.5);
    CHECK(times[0][rank].communication[CommKind::kNorm].exposed == rank);
  }
  std::vector<std::pair<int, int>> found;
  for (const Event& event : events[0]) {
    found.push_back({event.rank, event.index});
    CHECK(event.start == 100.0 + event.index);  // threads share one clock
  }
  CHECK(found == std::vector<std::pair<int, int>>{{0, 0}, {2, 0}, {2, 1}, {2, 2}});
  CHECK(times[1].size() == 1);
}

}  // namespace pp
