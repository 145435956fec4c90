// When a run counts as stalled, and what is reported.
#include "runtime/run/stall_watch.h"

#include <catch2/catch.hpp>

namespace pp {

TEST_CASE("a run stalls when no rank has moved for the whole time") {
  StallWatch watch(2, 3);
  watch.Heartbeat(0, {5, "FW s0 m0"});
  CHECK_FALSE(watch.Tick(2));
  watch.Heartbeat(1, {7, "FW s1 m0"});  // is new
  CHECK_FALSE(watch.Tick(2));
  watch.Heartbeat(1, {8, "BW s1 m0"});
  CHECK_FALSE(watch.Tick(2.5));
  watch.Heartbeat(0, {5, "FW s0 m0"});  // heartbeats without progress do not count
  watch.Heartbeat(1, {.progress = 8, .text = "BW s1 m0", .step = 7, .process = "process 4 on a"});
  CHECK(watch.Tick(0.5));
  CHECK(
      watch.Text() ==
      "no progress for 3 s: rank 0 at 'FW s0 m0'; rank 1 (process 4 on a) at 'BW s1 m0' of step 7");
}

TEST_CASE("a rank without a sign in the quiet time does not answer") {
  StallWatch watch(3, 1);
  watch.Heartbeat(1, {.progress = 1, .text = "WAIT act s0 m0", .process = "process 4 on a"});
  watch.Heartbeat(0, {1, "FW s0 m0"});  // rank 1's sign was before the quiet time
  watch.Finished(2);
  CHECK(watch.Tick(1));
  CHECK(
      watch.Text() ==
      "no progress for 1 s: rank 0 at 'FW s0 m0'; rank 1 (process 4 on a) does not answer; rank 2 "
      "has finished");
}

TEST_CASE("a rank that waits for a disk does not stall, which is told once") {
  StallWatch watch(2, 3);
  watch.Heartbeat(0, {4, "WAIT act s0 m0"});
  for (int second = 0; second < 9; ++second) {
    watch.Heartbeat(1, {7, "fsync of a/rank-1", true});
    CHECK_FALSE(watch.Tick(1));
    CHECK(watch.TakeSlowFile() ==
          (second == 2 ? "rank 1 has waited 3 s for fsync of a/rank-1" : ""));
  }
  watch.Heartbeat(1, {8, "fsync of a", true});  // the next operation has its own time
  CHECK_FALSE(watch.Tick(2.5));
  CHECK(watch.TakeSlowFile() == "");
  CHECK_FALSE(watch.Tick(0.4));
  CHECK(watch.Tick(0.2));  // a rank that gives no sign any more may be dead
}

TEST_CASE("0 seconds: never") {
  StallWatch watch(1, 0);
  for (int i = 0; i < 10; ++i) CHECK_FALSE(watch.Tick(1e6));
}

TEST_CASE("fractions of a second are said") {
  StallWatch watch(1, 0.25);
  CHECK(watch.Tick(0.25));
  CHECK(watch.Text() == "no progress for 0.25 s: rank 0 does not answer");
}

}  // namespace pp
