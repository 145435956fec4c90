// What a rank records: how an instruction's time is classified, and how many steps are kept.
#include "runtime/plan/recorder.h"

#include <catch2/catch.hpp>

namespace pp {

TEST_CASE("every communication has its kind") {
  CHECK(CommKindOf(Op::kSendAct) == CommKind::kMessages);
  CHECK(CommKindOf(Op::kRecvGrad) == CommKind::kMessages);
  CHECK(CommKindOf(Op::kReduceGrad) == CommKind::kGradients);
  CHECK(CommKindOf(Op::kScatterGrad) == CommKind::kGradients);
  CHECK(CommKindOf(Op::kReduceTied) == CommKind::kTied);
  CHECK(CommKindOf(Op::kReduceNorm) == CommKind::kNorm);
  CHECK(CommKindOf(Op::kGatherWeights) == CommKind::kWeights);
  CommTimes times;
  times[CommKind::kTied].total = 3;
  CHECK(times.kinds[2].total == 3);
  CHECK(kCommNames[2] == "tied");
}

std::vector<Event> EventsOf(const Recorder& recorder) {
  std::vector<Event> events;
  recorder.AppendTo(&events);
  return events;
}

TEST_CASE("events know their rank, and their times stay where they are") {
  Recorder recorder(3, 1, -1);
  recorder.Reserve(2, 5, 4);
  Recorder::Times* first = recorder.Add(0, 1);
  recorder.Add(4, 1, {2, 2.25});
  for (int64_t step = 2; step <= 4; ++step) {
    recorder.Add(0, step, {1.5, 2});
    recorder.Add(4, step, {2, 2.25});
  }
  *first = {1, 1.75};  // a device writes them some time later
  const std::vector<Event> events = EventsOf(recorder);
  REQUIRE(events.size() == 8);
  CHECK(events[0].start == 1);
  CHECK(events[0].duration == 0.75);
  const Event& last = events.back();
  CHECK(last.rank == 3);
  CHECK(last.device == 1);
  CHECK(last.index == 4);
  CHECK(last.step == 4);
  CHECK(last.start == 2);
  CHECK(last.duration == 0.25);
}

TEST_CASE("a long run keeps its first whole steps") {
  Recorder recorder(0, 0, -1);
  recorder.Reserve(1, Recorder::kMaxEvents / 3, 100);  // 3 steps fit
  for (int64_t step = 1; step <= 100; ++step) recorder.Add(0, step, {0, 1});
  REQUIRE(EventsOf(recorder).size() == 3);
  CHECK(EventsOf(recorder).back().step == 3);
  CHECK(recorder.Add(0, 4) == nullptr);
  Recorder huge(0, 0, -1);
  huge.Reserve(1, 2 * Recorder::kMaxEvents, 100);  // a step is kept whatever its size
  for (int64_t step = 1; step <= 100; ++step) huge.Add(0, step, {0, 1});
  CHECK(EventsOf(huge).size() == 1);
  Recorder empty(0, 0, -1);
  empty.Reserve(0, 0, 7);
  CHECK(EventsOf(empty).empty());
}

TEST_CASE("the runtime's own time an instruction") {
  CHECK(TimeSpent{}.OwnPerInstruction() == 0);
  CHECK(TimeSpent{.own = 3, .instructions = 6}.OwnPerInstruction() == 0.5);
}

}  // namespace pp
