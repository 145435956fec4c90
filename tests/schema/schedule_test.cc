// A schedule that lacks something, has it twice, elsewhere or too early: the error says what and
// where.
#include "schema/semantics/schedule.h"

#include <catch2/catch.hpp>

#include "compiler/interop.h"
#include "compiler/scheme.h"
#include "schema/sections.h"

namespace pp {
namespace {

std::string ErrorOf(const std::string& text, bool csv = false) {
  Naming name;
  const auto program = csv ? ParseTorchCsv(text, "x", &name) : Parse(text, "x", &name);
  INFO(program.status().message());
  REQUIRE(program.ok());
  return CheckSchedule(*program, name).message();
}

const std::string kHead = "program x stages 2 microbatches 2\n\n";
const std::string kSecond = "device 1 holds s1\n  FW s1 m0\n  BW s1 m0\n  FW s1 m1\n  BW s1 m1\n";
const auto first = [](const std::string& list) {
  return kHead + "device 0 holds s0\n" + list + kSecond;
};

}  // namespace

TEST_CASE("what a text's lists lack is named with its lines") {
  CHECK(ErrorOf(first("  FW s0 m0\n  FW s0 m1\n  BW s0 m0\n  BW s0 m1\n")) == "");
  CHECK(ErrorOf(first("  FW s0 m0\n# a line between\n  FW s0 m1\n  BW s0 m0\n")) ==
        "BW s0 m1 is missing on device 0 (line 6 has its FW)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n  BW s0 m1\n")) ==
        "FW s0 m1 is missing on device 0 (line 6 has its BW)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n")) ==
        "FW s0 m1 is missing on device 0 (line 3 has its list)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n  BW s0 m1\n  FW s0 m1\n")) ==
        "line 6: 'BW s0 m1' comes before 'FW s0 m1', line 7");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n  FW s0 m1\n  BW s0 m1\n  BW s0 m1\n")) ==
        "line 8: 'BW s0 m1' after 'BW s0 m1', line 7 (once)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n  FW s1 m1\n  BW s0 m1\n")) ==
        "line 6: 'FW s1 m1' on device 0 (stage 1 of its pipe is on device 1)");
  CHECK(ErrorOf(first("  CFW s0 m0\n  BW s0 m0\n  FW s0 m1\n  BW s0 m1\n")) ==
        "RE s0 m0 is missing on device 0 (line 4 has its CFW)");
  CHECK(ErrorOf(first("  FW s0 m0\n  RE s0 m0\n  BW s0 m0\n  FW s0 m1\n  BW s0 m1\n")) ==
        "CFW s0 m0 is missing on device 0 (line 5 has its RE)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW_input s0 m0\n  FW s0 m1\n  BW s0 m1\n")) ==
        "BW_weight s0 m0 is missing on device 0 (line 5 has its BW_input)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW_weight s0 m0\n  FW s0 m1\n  BW s0 m1\n")) ==
        "BW_input s0 m0 is missing on device 0 (line 4 has its FW)");
  CHECK(ErrorOf(first("  FW s0 m0\n  BW s0 m0\n  BW_weight s0 m0\n  FW s0 m1\n  BW s0 m1\n")) ==
        "BW_input s0 m0 is missing on device 0 (line 6 has its BW_weight)");
}

TEST_CASE("what a CSV's rows lack is named with its cells") {
  CHECK(ErrorOf("0F0,0F1,0B0,0B1\n1F0,1B0,,1F1,1B1\n", true) == "");
  CHECK(ErrorOf("0F0,0F1,0B0,0B1\n1F0,1B0,,1F1\n", true) ==
        "BW s1 m1 is missing on device 1 (row 2, column 4 has its FW)");
  CHECK(ErrorOf("0F0,0F1,0B1,0B0\n1F0,1B0,,1B1,1F1\n", true) ==
        "row 2, column 4: 'BW s1 m1' comes before 'FW s1 m1', row 2, column 5");
  const std::string messages = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
  CHECK(ErrorOf(messages, true) == "");
  const auto without = [&](const std::string& cell) {
    std::string text = messages;
    return ErrorOf(text.replace(text.find(cell), cell.size(), ""), true);
  };
  CHECK(without("0SEND_F0") ==
        "SEND_act s0 m0 is missing on device 0 (row 2, column 1 has its "
        "RECV_act)");
  CHECK(without("1RECV_F0") ==
        "RECV_act s0 m0 is missing on device 1 (row 1, column 2 has its "
        "SEND_act)");
  CHECK(without("0RECV_B0") ==
        "RECV_grad s0 m0 is missing on device 0 (row 2, column 4 has its "
        "SEND_grad)");
  CHECK(without("1SEND_B0") ==
        "SEND_grad s0 m0 is missing on device 1 (row 1, column 3 has its "
        "RECV_grad)");
  CHECK(ErrorOf("0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1RECV_F0,1B0,1SEND_B0\n", true) ==
        "row 2, column 1: 'FW s1 m0' comes before 'RECV_act s0 m0 from d0', row 2, column 2");
}

TEST_CASE("a scheme that is off by one is named with its device") {
  Program program = *BuildSchedule("1f1b", {.devices = 4, .microbatches = 8});
  REQUIRE(CheckSchedule(program, NameByIndex).ok());
  program.lists[2].body.pop_back();
  CHECK(CheckSchedule(program, NameByIndex).message() ==
        "BW s2 m7 is missing on device 2 (device 2, instruction 13 has its FW)");
}

TEST_CASE("stages that a device's line and the pipes place otherwise are refused") {
  const std::string text =
      "program x stages 2 microbatches 1\npipe d0 d1\n"
      "device 0 holds s1\n  FW s0 m0\n  BW s0 m0\ndevice 1 holds s1\n  FW s1 m0\n  BW s1 m0\n";
  CHECK(Parse(text, "x").status().message() ==
        "x: line 3: 'device 0 holds s1', but the pipes place s0 there");
}

}  // namespace pp
