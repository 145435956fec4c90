// One list, walked in order: what each instruction waits for, computed by hand, and each way in
// which a value can be used wrongly.
#include "schema/semantics/walk.h"

#include <catch2/catch.hpp>
#include <string>

#include "schema/text.h"

namespace pp {
namespace {

// Device 0 of two, whose second device is left empty; what is sent and received has no other end.
constexpr const char* kLists = R"(program one stages 2 microbatches 2
device 0 holds s0
  LOAD s0 m0
  FW s0 m0
  SEND_act s0 m0 to d1
  RECV_grad s0 m0 from d1
  LOAD s0 m1
  CFW s0 m1
  SEND_act s0 m1 to d1
  WAIT grad s0 m0
  BW s0 m0
  RE s0 m1
  RECV_grad s0 m1 from d1
  WAIT grad s0 m1
  BW_input s0 m1
  BW_weight s0 m1
  WAIT act s0 m0 sent
  WAIT act s0 m1 sent
  NORM_grad s0
  REDUCE_norm
  WAIT norm
  STEP s0
device 1 holds s1
)";

Status Walk(const std::string& text, int device, Depth depth, WaitsFor* waits_for) {
  const auto program = Parse(text, "text");
  INFO(program.status().message());
  REQUIRE(program.ok());
  const Placement placement(*program);
  return WalkList(*program, device, program->lists[device].body,
                  {.depth = depth, .placement = &placement, .waits_for = waits_for});
}

// The lists with `from` replaced.
std::string ErrorWith(const std::string& from, const std::string& to) {
  std::string text = kLists;
  const size_t at = text.find("  " + from + "\n");
  REQUIRE(at != text.npos);
  text.replace(at, from.size() + 3, to.empty() ? "" : "  " + to + "\n");
  const Status status = Walk(text, 0, Depth::kLists, nullptr);
  return status.ok() ? "right" : status.message();
}

}  // namespace

TEST_CASE("what each instruction waits for") {
  WaitsFor waits_for;
  const Status status = Walk(kLists, 0, Depth::kLists, &waits_for);
  INFO(status.message());
  REQUIRE(status.ok());
  const WaitsFor by_hand = {
      -1, -1, 1,   // LOAD, FW, and the SEND of what FW wrote
      -1,          // a RECV into memory that nothing has used
      -1, -1, 5,   // LOAD, CFW, SEND
      3,  -1, -1,  // WAIT for the RECV, BW, RE
      -1, 10, -1,  // RECV, WAIT, BW_input
      -1, 2,  6,   // BW_weight, and WAITs for the SENDs
      -1, 16, 17,  // NORM_grad, what gathers it, WAIT
      -1,
  };
  CHECK(waits_for == by_hand);
}

TEST_CASE("each wrong use of a value is found where it stands") {
  const struct {
    const char *from, *to, *error;
  } kCases[] = {
      {"LOAD s0 m0", "",
       "'FW s0 m0' (instruction 0): reads tokens s0 m0, which nothing has written"},
      {"LOAD s0 m1", "LOAD s0 m0",
       "'LOAD s0 m0' (instruction 4): writes tokens s0 m0 a second time"},
      {"WAIT grad s0 m0", "", "'BW s0 m0' (instruction 7): reads grad s0 m0 without a WAIT for it"},
      {"RE s0 m1", "BW s0 m0",
       "'BW s0 m0' (instruction 9): reads stash s0 m0, which was read before"},
      {"RE s0 m1", "",
       "'BW_input s0 m1' (instruction 11): reads stash s0 m1, which nothing has "
       "written"},
      {"BW_weight s0 m1", "BW_weight s0 m0",
       "'BW_weight s0 m0' (instruction 13): reads work s0 m0, which nothing has written"},
      {"SEND_act s0 m1 to d1", "SEND_act s0 m0 to d1",
       "'SEND_act s0 m0 to d1' (instruction 6): reads act s0 m0, which is being sent"},
      {"WAIT act s0 m1 sent", "",
       "'SEND_act s0 m1 to d1' (instruction 6): act s0 m1 is sent but the send never waited for"},
      {"SEND_act s0 m1 to d1", "",
       "'WAIT act s0 m1 sent' (instruction 14): no SEND of act s0 m1 is under way"},
      {"FW s0 m0", "FW s1 m0",
       "'FW s1 m0' (instruction 1): stage 1 of micro-batch 0 is on device 1"},
      {"CFW s0 m1", "EVAL s0 m1", "'EVAL s0 m1' (instruction 5): in a step (an evaluation has it)"},
  };
  for (const auto& c : kCases) {
    INFO(c.from << " -> " << c.to);
    CHECK(ErrorWith(c.from, c.to) == std::string("device 0, ") + c.error);
  }
}

TEST_CASE("of a schedule what others make is there") {
  const std::string schedule = R"(program one stages 2 microbatches 1
device 0 holds s0
  FW s0 m0
  BW s0 m0
device 1 holds s1
  BW s1 m0
  FW s1 m0
)";
  // Tokens are made on the device itself.
  CHECK(Walk(schedule, 0, Depth::kSchedule, nullptr).message() ==
        "device 0, 'FW s0 m0' (instruction 0): reads tokens s0 m0, which nothing has written");
  CHECK(Walk(schedule, 1, Depth::kSchedule, nullptr).message() ==
        "device 1, 'BW s1 m0' (instruction 0): reads stash s1 m0, which nothing has written");
}

TEST_CASE("tables are not made for lists that are far too short") {
  const std::string text =
      "program one stages 1 microbatches 1000000\ndevice 0 holds s0\n  LOAD s0 m0\n";
  CHECK_THAT(Walk(text, 0, Depth::kLists, nullptr).message(),
             Catch::StartsWith("device 0: 1 instructions for 1000000 micro-batches"));
}

}  // namespace pp
