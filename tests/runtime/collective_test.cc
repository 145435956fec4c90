// Groups of ranks in one thread: who contributes what, who gets what, and the order of sums.
#include "runtime/plan/collective.h"

#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <string>
#include <tuple>

#include "runtime/comm/in_process_transport.h"
#include "runtime/device/cpu_device.h"

namespace pp {
namespace {

// Even shards of `count` floats, the last one with the remainder.
std::vector<std::vector<ByteRange>> EvenShards(int members, int64_t count) {
  std::vector<std::vector<ByteRange>> shards;
  const int64_t share = count / members;
  for (int k = 0; k < members; ++k)
    shards.push_back({{k * share * 4, (k + 1 == members ? count - k * share : share) * 4}});
  return shards;
}

struct Member {
  std::vector<float> value, second;
  std::vector<std::byte> exchange;
  std::unique_ptr<Device> device = MakeCpuDevice();
  std::unique_ptr<RunningCollective> collective;
  bool over = false;
};

// Ranks 0 to ranks-1, of which those of `group` take part.
struct TestCollective {
  TestCollective(CollectiveKind kind, int ranks, Group group, int64_t count)
      : group(std::move(group)), transports(MakeInProcessTransports(ranks)), members(ranks) {
    std::mt19937 random(7);
    std::uniform_real_distribution<float> numbers(-1, 1);
    for (const int rank : this->group) {
      Member& member = members[rank];
      for (int64_t i = 0; i < count; ++i) member.value.push_back(numbers(random));
      member.exchange.resize(this->group.size() * (kExchangePiece + kAlign));
    }
    args.kind = kind;
    args.group = this->group;
    args.shards = EvenShards(static_cast<int>(this->group.size()), count);
  }

  // The members advance in a seeded order, some of them often before others begin.
  void Run(unsigned seed) {
    for (const int rank : group) {
      Member& member = members[rank];
      CollectiveArgs mine = args;
      mine.rank = rank;
      mine.value = reinterpret_cast<std::byte*>(member.value.data());
      if (!member.second.empty()) mine.second = reinterpret_cast<std::byte*>(member.second.data());
      mine.exchange = member.exchange.data();
      member.collective = std::make_unique<RunningCollective>(mine, transports[rank].get(),
                                                              &member.device->reduce());
      CHECK(member.collective->Start(0).ok());
      member.over = false;
    }
    std::mt19937 random(seed);
    for (int round = 0; round < 100000; ++round) {
      Member& member = members[group[random() % group.size()]];
      if (!member.over) CHECK(member.collective->Test(&member.over).ok());
      if (std::all_of(group.begin(), group.end(), [&](int r) { return members[r].over; })) return;
    }
    FAIL("does not end");
  }

  Group group;
  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<Member> members;
  CollectiveArgs args;
};

// The sums of all members' values, in the group's order.
std::vector<float> OrderedSum(const TestCollective& collective) {
  std::vector<float> sum = collective.members[collective.group[0]].value;
  for (size_t k = 1; k < collective.group.size(); ++k)
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] += collective.members[collective.group[k]].value[i];
  return sum;
}

TEST_CASE("an all-reduce adds in the group's order, whoever comes first") {
  const Group group = GENERATE(Group{0}, Group{0, 1}, Group{2, 0, 3}, Group{4, 3, 2, 1, 0});
  // The last one takes several pieces of the exchange.
  const int64_t count = GENERATE(1, 100, 4099, 3 * kExchangePiece / 4 + 11);
  for (const unsigned seed : {1u, 2u, 3u}) {
    TestCollective collective(CollectiveKind::kAllReduce, 5, group, count);
    const std::vector<float> sum = OrderedSum(collective);
    collective.Run(seed);
    for (const int rank : group) CHECK(collective.members[rank].value == sum);
  }
}

TEST_CASE("a reduce-scatter gives each member its shard with the all-reduce's bits") {
  const Group group{1, 2, 0};
  TestCollective collective(CollectiveKind::kReduceScatter, 3, group, 1000);
  const std::vector<float> sum = OrderedSum(collective);
  collective.Run(4);
  for (size_t k = 0; k < group.size(); ++k) {
    const ByteRange shard = collective.args.shards[k][0];
    for (int64_t i = shard.begin / 4; i < (shard.begin + shard.bytes) / 4; ++i)
      CHECK(collective.members[group[k]].value[i] == sum[i]);
  }
}

TEST_CASE("an all-gather brings all shards collective, and may start at another place") {
  TestCollective collective(CollectiveKind::kAllGather, 3, {0, 1, 2}, 90);
  // Two ranges of one member, none of another.
  collective.args.shards = {{{0, 40}, {200, 160}}, {}, {{40, 160}}};
  std::vector<float> all(90);
  for (int k = 0; k < 3; ++k)
    for (const ByteRange& range : collective.args.shards[k])
      for (int64_t i = range.begin / 4; i < (range.begin + range.bytes) / 4; ++i)
        all[i] = collective.members[k].value[i];
  collective.Run(5);
  for (const Member& member : collective.members) CHECK(member.value == all);
}

TEST_CASE("a member may bring two parts, which both get the sum") {
  const int ranks = GENERATE(1, 2);
  Group group;
  for (int r = 0; r < ranks; ++r) group.push_back(r);
  TestCollective collective(CollectiveKind::kAllReduce, 2, group, 50);
  std::vector<float> sum(50);
  collective.members[0].second.assign(50, 0.25f);
  for (int i = 0; i < 50; ++i) {
    sum[i] = collective.members[0].value[i] + 0.25f;
    if (ranks == 2) sum[i] += collective.members[1].value[i];
  }
  collective.Run(6);
  CHECK(collective.members[0].second == sum);
  for (const int rank : group) CHECK(collective.members[rank].value == sum);
}

TEST_CASE("a collective can run again") {
  TestCollective collective(CollectiveKind::kAllReduce, 2, {0, 1}, 10);
  for (int time = 0; time < 3; ++time) {
    const std::vector<float> sum = OrderedSum(collective);
    collective.Run(8 + time);
    CHECK(collective.members[1].value == sum);
  }
}

// A queue that transfers are work of: it writes down what it is given.
class Stream : public Queue {
 public:
  Ticket Submit(StageExecutor&, const StageCall&) override { return Add("submit"); }
  Ticket Sum(const SumArgs& args) override {
    return Add("sum " + std::to_string(args.n) + (args.also != nullptr ? " twice" : ""));
  }
  Ticket CopyIn(void*, const void*, int64_t) override { return Add("copy"); }
  Ticket CopyOut(void*, const void*, int64_t) override { return Add("copy"); }
  Ticket Drop(void*, int64_t) override { return last(); }
  Ticket Stamp(double*) override { return Add("stamp"); }
  void Follow(const Queue&, Ticket) override { Add("follow"); }
  Ticket last() const override { return static_cast<Ticket>(work.size()); }
  Ticket Mark() override { return last(); }
  QueueTime time() const override { return {}; }
  bool Done(Ticket) const override { return false; }

  Ticket Add(std::string what) {
    work.push_back(std::move(what));
    return last();
  }
  std::vector<std::string> work;
};

class StreamTransport : public Transport {
 public:
  StreamTransport() : Transport(1, 3) {}
  Status Start(const Port&, void*, int64_t) override { return Status::Failed("not together"); }
  Status StartTogether(std::span<const TransferArgs> transfers) override {
    std::string what;
    for (const TransferArgs& transfer : transfers)
      what += (transfer.port.way == Way::kSend ? " >" : " <") + std::to_string(transfer.bytes);
    stream.Add("transfer" + what);
    return {};
  }
  Status Test(const Port&, bool*) override { return Status::Failed("nobody asks"); }
  Queue* QueueOf(const Port&) const override { return &stream; }
  bool polls() const override { return false; }
  void Settle(double) override {}

  mutable Stream stream;
};

TEST_CASE("where transfers are a queue's work, a bucket takes two rounds and nothing of the host") {
  StreamTransport transport;
  std::vector<float> value(3 << 20), second(value.size());
  std::vector<std::byte> exchange(2 * value.size() * 4 / 3 + 2 * kAlign);
  CollectiveArgs args{.group = {0, 1, 2},
                      .rank = 1,
                      .shards = EvenShards(3, static_cast<int64_t>(value.size())),
                      .value = reinterpret_cast<std::byte*>(value.data()),
                      .exchange = exchange.data(),
                      .piece = MostExchangePiece(DeviceKind::kCuda)};
  const std::string shard = std::to_string(4 << 20), both = " >" + shard + " <" + shard;
  const std::vector<std::string> all = {"transfer" + both + both, "sum 1048576",
                                        "transfer" + both + both};
  {
    RunningCollective collective(args, &transport, nullptr);
    CHECK(collective.stream() == &transport.stream);
    CHECK(collective.Start(0).ok());
    CHECK(transport.stream.work == all);
  }
  // The other kinds are its halves; a member's second part is added before, and gets the sum after.
  for (const auto& [kind, from, to] : {std::tuple{CollectiveKind::kReduceScatter, 0, 2},
                                       std::tuple{CollectiveKind::kAllGather, 2, 3}}) {
    args.kind = kind;
    transport.stream.work.clear();
    RunningCollective collective(args, &transport, nullptr);
    CHECK(collective.Start(0).ok());
    CHECK(transport.stream.work == std::vector(all.begin() + from, all.begin() + to));
  }
  args.kind = CollectiveKind::kAllReduce;
  args.second = reinterpret_cast<std::byte*>(second.data());
  transport.stream.work.clear();
  RunningCollective collective(args, &transport, nullptr);
  CHECK(collective.Start(0).ok());
  CHECK(transport.stream.work.size() == 5);
  CHECK(transport.stream.work.front() == "sum 3145728");
  CHECK(transport.stream.work.back() == "sum 3145728");
}

}  // namespace
}  // namespace pp
