// The lanes of one rank, driven step by step from one thread: by hand, with a device that is done
// when the test says so, and with the test playing the other rank's end of the transport.
#include "runtime/plan/lanes.h"

#include <catch2/catch.hpp>
#include <vector>

#include "runtime/comm/in_process_transport.h"
#include "runtime/device/cpu_device.h"

namespace pp {
namespace {

// The test says how far the work submitted to the compute queue is done.
class SlowDevice : public Device {
 public:
  // It writes down what its streams and other queues have to do with each other.
  class SlowQueue : public Queue {
   public:
    Ticket Submit(StageExecutor&, const StageCall&) override { return 0; }
    Ticket Sum(const SumArgs&) override { return 0; }
    Ticket CopyIn(void*, const void*, int64_t) override { return 0; }
    Ticket CopyOut(void*, const void*, int64_t) override { return 0; }
    Ticket Drop(void*, int64_t) override { return 0; }
    Ticket Stamp(double* seconds) override {
      *seconds = static_cast<double>(++last_);
      return last_;
    }
    void Follow(const Queue&, Ticket ticket) override { followed.push_back(ticket); }
    Ticket last() const override { return last_; }
    Ticket Mark() override { return ++last_; }
    QueueTime time() const override { return {}; }
    bool Done(Ticket ticket) const override { return ticket <= done; }
    Ticket done = 0;
    std::vector<Ticket> followed;

   private:
    Ticket last_ = 0;
  };
  Status Allocate(int64_t bytes) override { return inner_->Allocate(bytes); }
  std::byte* at(int64_t offset) const override { return inner_->at(offset); }
  int64_t HighWater() const override { return 0; }
  Queue& compute() override { return queue; }
  Queue& reduce() override { return inner_->reduce(); }
  std::unique_ptr<Kernels> MakeKernels(const KernelsArgs&) override { return nullptr; }
  void Finish() override {}

  SlowQueue queue;

 private:
  const std::unique_ptr<Device> inner_ = MakeCpuDevice();
};

Instruction Message(Op op, int micro) { return {.op = op, .stage = 0, .micro = micro, .peer = 0}; }
Instruction Compute(Op op, int micro) { return {.op = op, .stage = 1, .micro = micro}; }

// Its transfers are work of a queue, which the test says to be done.
class StreamTransport : public Transport {
 public:
  StreamTransport() : Transport(1, 2) {}
  Status Start(const Port&, void* data, int64_t) override {
    started.push_back(*static_cast<int*>(data));
    stream.Mark();
    return {};
  }
  Status Test(const Port&, bool*) override { return Status::Failed("nobody asks"); }
  Queue* QueueOf(const Port&) const override { return &stream; }
  bool polls() const override { return false; }
  void Settle(double) override {}

  mutable SlowDevice::SlowQueue stream;
  std::vector<int> started;  // the messages' numbers
};

// Rank 1 of two, with its own list. A message is one number; each has its own place.
class Fixture {
 public:
  explicit Fixture(std::vector<Instruction> body, bool overlaps = false)
      : transports(MakeInProcessTransports(2)), list_(std::move(body)), values(list_.size(), -1) {
    bound.list = list_;
    bound.microbatches = 1;
    bound.overlaps = overlaps;
    bound.waits_for.resize(list_.size());
    bound.releases.resize(list_.size());
    for (size_t i = 0; i < list_.size(); ++i) {
      bound.data.push_back(reinterpret_cast<std::byte*>(&values[i]));
      bound.bytes.push_back(sizeof(int));
    }
  }

  void Make(Recorder* recorder = nullptr, Transport* transport = nullptr) {
    lanes = std::make_unique<Lanes>(
        Lanes::Args{.list = &bound,
                    .topology = &topology_,
                    .transport = transport ? transport : transports[1].get(),
                    .device = &device,
                    .recorder = recorder,
                    .compute_bell = &compute_bell_,
                    .stop = &stop});
  }
  // Whether anything moved.
  bool Advance() {
    bool moved = false;
    REQUIRE(lanes->Advance(&moved).ok());
    return moved;
  }
  // The other rank, a number at a time.
  void PeerSends(int number) {
    sent_ = number;
    REQUIRE(transports[0]->Start({Way::kSend, Channel::kAct, 1}, &sent_, sizeof sent_).ok());
  }
  bool PeerHasSent() { return PeerTest(Way::kSend); }
  void PeerReceives() {
    received = -1;
    REQUIRE(transports[0]->Start({Way::kRecv, Channel::kAct, 1}, &received, sizeof received).ok());
  }
  bool PeerHasReceived() { return PeerTest(Way::kRecv); }

 private:
  bool PeerTest(Way way) {
    bool over = false;
    REQUIRE(transports[0]->Test({way, Channel::kAct, 1}, &over).ok());
    return over;
  }
  const Topology topology_{.devices = 2};
  Bell compute_bell_;
  int sent_ = 0;

 public:
  std::vector<std::unique_ptr<Transport>> transports;

 private:
  const std::vector<Instruction> list_;

 public:
  std::vector<int> values;  // by index
  BoundList bound;
  SlowDevice device;
  std::atomic<bool> stop{false};
  std::unique_ptr<Lanes> lanes;
  int received = -1;
};

}  // namespace

TEST_CASE("nothing starts before its iteration begins") {
  Fixture f({Message(Op::kRecvAct, 0)});
  f.Make();
  f.PeerSends(11);
  CHECK_FALSE(f.Advance());
  CHECK_FALSE(f.PeerHasSent());
  f.lanes->Begin({1});
  CHECK(f.lanes->iteration() == 1);
  CHECK_FALSE(f.lanes->Over(0, 1));
  CHECK(f.Advance());
  CHECK(f.lanes->Over(0, 1));
  CHECK_FALSE(f.lanes->Over(0, 2));
  CHECK(f.PeerHasSent());
  CHECK(f.values[0] == 11);
  f.lanes->Await(0, 1);  // is over
  // The next one is the next iteration's.
  f.PeerSends(12);
  CHECK_FALSE(f.Advance());
  CHECK(f.values[0] == 11);
  f.lanes->Begin({2});
  CHECK(f.Advance());
  CHECK(f.values[0] == 12);
}

TEST_CASE("a message starts only when what it waits for is passed, and done") {
  Fixture f({Message(Op::kRecvAct, 0), Compute(Op::kForward, 0), Message(Op::kRecvAct, 1)});
  f.bound.waits_for[2] = {0, 1};
  f.Make();
  f.lanes->Begin({1});
  f.PeerSends(1);
  CHECK(f.Advance());
  CHECK(f.PeerHasSent());
  f.PeerSends(2);
  CHECK_FALSE(f.Advance());  // the forward is still to come
  f.lanes->Passed(1, 7);
  f.device.queue.done = 6;
  CHECK_FALSE(f.Advance());  // it is submitted
  CHECK(f.values[2] == -1);
  f.device.queue.done = 7;
  CHECK(f.Advance());
  CHECK(f.values[2] == 2);
}

TEST_CASE("what a message waits for in the body before, it does not in the first iteration") {
  Fixture f({Message(Op::kRecvAct, 0), Compute(Op::kForward, 0)});
  f.bound.waits_for[0] = {-1, 1};
  f.Make();
  f.lanes->Begin({1});
  f.PeerSends(1);
  CHECK(f.Advance());
  CHECK(f.PeerHasSent());
  f.PeerSends(2);
  f.device.queue.done = 4;
  f.lanes->Passed(1, 5);
  f.lanes->Begin({2});
  CHECK_FALSE(f.Advance());  // the forward of iteration 1 is not done
  f.lanes->Passed(1, 9);     // that of iteration 2 does not matter
  CHECK_FALSE(f.Advance());
  f.device.queue.done = 5;
  CHECK(f.Advance());
  CHECK(f.PeerHasSent());
  CHECK(f.values[0] == 2);
  f.PeerSends(3);
  f.lanes->Begin({3});
  CHECK_FALSE(f.Advance());
  f.device.queue.done = 9;
  CHECK(f.Advance());
  CHECK(f.values[0] == 3);
}

TEST_CASE("a lane does one thing at a time, and lanes run side by side") {
  Fixture f({Message(Op::kSendAct, 0), Message(Op::kSendAct, 1), Message(Op::kRecvAct, 0)});
  f.values = {10, 20, -1};
  f.Make();
  f.lanes->Begin({1});
  CHECK(f.Advance());
  CHECK(f.lanes->in_flight());
  CHECK_FALSE(f.Advance());  // nobody takes the first, so the second does not start
  CHECK_FALSE(f.lanes->Over(0, 1));
  f.PeerSends(5);
  CHECK(f.Advance());
  CHECK(f.values[2] == 5);  // whatever the sends do
  f.PeerReceives();
  CHECK(f.PeerHasReceived());
  CHECK(f.received == 10);
  CHECK(f.Advance());
  f.PeerReceives();
  CHECK(f.PeerHasReceived());
  CHECK(f.received == 20);
  CHECK(f.Advance());
  CHECK_FALSE(f.lanes->in_flight());
  for (int index : {0, 1, 2}) f.lanes->Await(index, 1);
}

TEST_CASE("messages of a stream are submitted ahead, and the queues wait for each other") {
  Fixture f({Compute(Op::kForward, 0), Message(Op::kSendAct, 0), Message(Op::kSendAct, 1)});
  f.values = {-1, 0, 1};
  for (int index : {1, 2}) f.bound.waits_for[index] = {0, 0};
  StreamTransport transport;
  Recorder recorder(1, 1, -1);
  recorder.Reserve(2, 3, 2);
  f.Make(&recorder, &transport);
  f.lanes->Begin({1});
  CHECK_FALSE(f.Advance());
  CHECK(transport.started.empty());
  f.lanes->Passed(0, 7);  // it is submitted, not done
  CHECK(f.Advance());
  CHECK(transport.started == std::vector<int>{0, 1});  // without waiting for the first
  CHECK(transport.stream.followed == std::vector<Ticket>{7, 7});
  CHECK_FALSE(f.lanes->Over(1, 1));
  // The compute queue goes on after the message's end: its stamp, the transfer, another stamp.
  f.lanes->Await(1, 1);
  CHECK(f.device.queue.followed == std::vector<Ticket>{3});
  f.lanes->Await(2, 1);
  CHECK(f.device.queue.followed == std::vector<Ticket>{3, 6});
  transport.stream.done = 3;
  CHECK(f.Advance());
  CHECK(f.lanes->Over(1, 1));
  CHECK_FALSE(f.lanes->Over(2, 1));
  f.lanes->Await(1, 1);  // nothing to follow any more
  CHECK(f.device.queue.followed.size() == 2);
  std::vector<Event> events;
  recorder.AppendTo(&events);
  REQUIRE(events.size() == 1);
  CHECK(events[0].start == 1);  // on the stream's clock
  CHECK(events[0].duration == 2);
  // What the compute queue has passed in the next iteration holds nothing up.
  f.lanes->Begin({2});
  f.lanes->Passed(0, 20);
  CHECK(f.Advance());
  CHECK(transport.started == std::vector<int>{0, 1, 0, 1});
  CHECK(transport.stream.followed == std::vector<Ticket>{7, 7, 20, 20});
  f.lanes->Await(1, 1);
  CHECK(f.device.queue.followed.size() == 2);
}

TEST_CASE("a stream gets only so much ahead of the device") {
  std::vector<Instruction> sends;
  for (int m = 0; m < 20; ++m) sends.push_back(Message(Op::kSendAct, m));
  Fixture f(sends);
  StreamTransport transport;
  f.Make(nullptr, &transport);
  f.lanes->Begin({1});
  CHECK(f.Advance());
  CHECK(transport.started.size() == 16);
  transport.stream.done = 3;  // the first
  CHECK(f.Advance());
  CHECK(transport.started.size() == 17);
}

TEST_CASE("a prologue leaves out this step's messages, an epilogue the next step's") {
  Fixture f({Message(Op::kRecvAct, 1), Message(Op::kRecvAct, 0)}, true);  // M = 1
  f.Make();
  f.lanes->Begin({1, BodyPart::kAhead});
  f.PeerSends(1);
  CHECK(f.Advance());
  CHECK(f.values == std::vector<int>{1, -1});
  CHECK(f.PeerHasSent());
  f.PeerSends(2);
  CHECK_FALSE(f.Advance());  // the second is left out, and the next iteration has not begun
  f.lanes->Begin({2});
  CHECK(f.Advance());
  CHECK(f.PeerHasSent());
  CHECK(f.values == std::vector<int>{2, -1});
  f.PeerSends(3);
  CHECK(f.Advance());
  CHECK(f.PeerHasSent());
  CHECK(f.values == std::vector<int>{2, 3});
  f.lanes->Begin({3, BodyPart::kRest});
  f.PeerSends(4);
  CHECK(f.Advance());
  CHECK(f.values == std::vector<int>{2, 4});
}

TEST_CASE("a rank that is behind goes through its iterations one after the other") {
  Fixture f({Message(Op::kRecvAct, 0)});
  f.Make();
  for (int64_t number : {1, 2, 3}) f.lanes->Begin({number});
  for (int number : {1, 2, 3}) {
    f.PeerSends(number);
    CHECK(f.Advance());
    CHECK(f.PeerHasSent());
    CHECK(f.values[0] == number);
    f.lanes->Await(0, number);
  }
  f.PeerSends(4);
  CHECK_FALSE(f.Advance());
}

TEST_CASE("nobody is awaited when the run stops") {
  Fixture f({Message(Op::kRecvAct, 0)});
  f.Make();
  f.lanes->Begin({1});
  f.stop.store(true);
  f.lanes->Await(0, 1);
  CHECK_FALSE(f.lanes->waiting());
}

TEST_CASE("messages are recorded with the step that they belong to") {
  Fixture f({Message(Op::kRecvAct, 1), Message(Op::kRecvAct, 0)}, true);
  Recorder recorder(1, 1, -1);
  recorder.Reserve(2, 2, 3);
  f.Make(&recorder);
  f.lanes->Begin({1, BodyPart::kAhead});
  f.PeerSends(1);
  f.Advance();
  CHECK(f.PeerHasSent());
  f.lanes->Begin({2});
  for (int number : {2, 3}) {
    f.PeerSends(number);
    f.Advance();
    CHECK(f.PeerHasSent());
  }
  std::vector<Event> events;
  recorder.AppendTo(&events);
  REQUIRE(events.size() == 3);
  const int index_and_step[][2] = {{0, 1}, {0, 2}, {1, 1}};
  double total = 0;
  for (int k = 0; k < 3; ++k) {
    const Event& event = events[k];
    CHECK(event.index == index_and_step[k][0]);
    CHECK(event.step == index_and_step[k][1]);
    CHECK(event.duration >= 0);
    total += event.duration;
  }
  CHECK(f.lanes->times()[CommKind::kMessages].total == Approx(total));
  CHECK(f.lanes->times()[CommKind::kMessages].exposed == 0);
}

TEST_CASE("a reduction waits for its gradient, and is over on both ranks") {
  struct Member {
    std::vector<float> value, exchange = std::vector<float>(1024);
    SlowDevice device;
    BoundList bound;
    Bell bell;
    std::unique_ptr<Lanes> lanes;
  };
  const std::vector<Instruction> list = {Compute(Op::kBackward, 0),
                                         {.op = Op::kReduceGrad, .bucket = 0, .stage = 1}};
  const Topology topology{.replicas = 2};
  auto transports = MakeInProcessTransports(2);
  std::atomic<bool> stop{false};
  Member members[2];
  for (int rank : {0, 1}) {
    Member& member = members[rank];
    member.value.assign(100, rank == 0 ? 1.0f : 2.0f);
    member.bound.list = list;
    member.bound.microbatches = 1;
    member.bound.waits_for = {{}, {0, 0}};
    member.bound.releases.resize(2);
    const CollectiveArgs args{.kind = CollectiveKind::kAllReduce,
                              .group = {0, 1},
                              .rank = rank,
                              .shards = {{{0, 160}}, {{160, 240}}},
                              .value = reinterpret_cast<std::byte*>(member.value.data()),
                              .exchange = reinterpret_cast<std::byte*>(member.exchange.data())};
    member.lanes = std::make_unique<Lanes>(Lanes::Args{.list = &member.bound,
                                                       .topology = &topology,
                                                       .transport = transports[rank].get(),
                                                       .collectives = {args},
                                                       .device = &member.device,
                                                       .compute_bell = &member.bell,
                                                       .stop = &stop});
    member.lanes->Begin({1});
  }
  auto advance = [&] {
    bool any = false;
    for (int round = 0; round < 10; ++round)
      for (Member& member : members) {
        bool moved = false;
        REQUIRE(member.lanes->Advance(&moved).ok());
        any = any || moved;
      }
    return any;
  };
  members[0].lanes->Passed(0, 0);
  members[1].lanes->Passed(0, 3);  // not done
  advance();
  CHECK(members[0].value == std::vector<float>(100, 1));
  CHECK_FALSE(members[1].lanes->in_flight());
  members[1].device.queue.done = 3;
  CHECK(advance());
  for (Member& member : members) {
    member.lanes->Await(1, 1);
    CHECK(member.value == std::vector<float>(100, 3));
  }
}

}  // namespace pp
