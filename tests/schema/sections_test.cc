// Prologue, body and epilogue, and the one list that they make.
#include "schema/semantics/sections.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "compiler/compile.h"
#include "schema/check.h"
#include "schema/text.h"

namespace pp {
namespace {

Program MustCompile(const std::string& scheme, Shape shape) {
  auto program = Compile({.scheme = scheme, .shape = shape});
  INFO(program.status().message());
  REQUIRE(program.ok());
  return *program;
}

std::string TextOf(const std::vector<Instruction>& list) {
  std::string text;
  for (const Instruction& i : list)
    if (i.op == Op::kForward || i.op == Op::kBackward)
      text += (text.empty() ? "" : ", ") + ToText(i);
  return text;
}

}  // namespace

TEST_CASE("sections are made of a body") {
  const Program program = MustCompile("pipedream-2bw", {2, 2});
  CHECK(HasSections(program));
  const DeviceList& list = program.lists[0];
  CHECK(TextOf(list.body) == "FW s0 m1 v1, BW s0 m0 v1, FW s0 m2 v0, BW s0 m1 v1");
  CHECK(TextOf(list.prologue) == "FW s0 m0 v0");
  CHECK(TextOf(list.epilogue) == "FW s0 m1 v1, BW s0 m0 v1, BW s0 m1 v1");
  CHECK(program.lists[1].prologue.empty());
  CHECK(program.lists[1].epilogue == program.lists[1].body);
}

TEST_CASE("sections are found again") {
  for (const char* scheme : {"pipedream", "pipedream-2bw"})
    for (int devices : {2, 3, 4}) {
      const Program program = MustCompile(scheme, {devices, 5});
      Program again = program;
      for (DeviceList& list : again.lists) list.prologue.clear(), list.epilogue.clear();
      DeriveSections(again);
      CHECK(again == program);
    }
}

TEST_CASE("a body that keeps to its step has no sections") {
  Program program = MustCompile("1f1b", {3, 4});
  const Program before = program;
  DeriveSections(program);
  CHECK(program == before);
  CHECK(!HasSections(program));
}

// The epilogue of the last step would have a micro-batch of a step that does not exist.
TEST_CASE("a micro-batch of the next step stands in a body alone") {
  const std::string text = Print(MustCompile("pipedream-2bw", {2, 2}));
  for (const char* section : {" prologue\n", " epilogue\n"}) {
    std::string wrong = text;
    wrong.insert(wrong.find(section) + std::strlen(section), "  FW        s0 m2 v0\n");
    CHECK_THAT(Parse(wrong, "text").status().message(),
               Catch::Contains("'FW        s0 m2 v0' (FW s0 to s1, m0 to m1"));
    Program program = MustCompile("pipedream-2bw", {2, 2});
    program.lists[0].epilogue[0].micro = 2;
    CHECK_THAT(CheckFields(program).message(), Catch::EndsWith("micro 2 (0 to 1)"));
  }
}

TEST_CASE("unrolled, micro-batches count on") {
  const Program program = MustCompile("pipedream-2bw", {2, 2});
  const Program unrolled = Unroll(program, 2);
  CHECK(!HasSections(unrolled));
  CHECK(unrolled.microbatches == 6);
  CHECK(unrolled.pipe_of == std::vector<int32_t>(6, 0));
  CHECK(TextOf(unrolled.lists[0].body) ==
        "FW s0 m0 v0, FW s0 m1 v1, BW s0 m0 v1, FW s0 m2 v0, BW s0 m1 v1, FW s0 m3 v1, "
        "BW s0 m2 v1, FW s0 m4 v0, BW s0 m3 v1, FW s0 m5 v1, BW s0 m4 v1, BW s0 m5 v1");
  for (int bodies : {0, 1, 3}) {
    size_t instructions = 0;
    for (const DeviceList& list : Unroll(program, bodies).lists) instructions += list.body.size();
    size_t expected = 0;
    for (const DeviceList& list : program.lists)
      expected += list.prologue.size() + bodies * list.body.size() + list.epilogue.size();
    CHECK(instructions == expected);
  }
}

}  // namespace pp
