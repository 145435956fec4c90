// Steps that overlap: what follows from a body, and the one list that it makes.
#include "schema/sections.h"

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

TEST_CASE("sections follow from a body") {
  const Program program = MustCompile("pipedream-2bw", {2, 2});
  CHECK(program.overlaps);
  const DeviceList& list = program.lists[0];
  CHECK(TextOf(list.body) == "FW s0 m1 v1, BW s0 m0 v1, FW s0 m2 v0, BW s0 m1 v1");
  const Sections sections = SectionsOf(program, 0);
  CHECK(TextOf(sections.prologue) == "FW s0 m0 v0");
  CHECK(TextOf(sections.epilogue) == "FW s0 m1 v1, BW s0 m0 v1, BW s0 m1 v1");
  CHECK(static_cast<size_t>(PrologueSize(program, 0)) == sections.prologue.size());
  CHECK(SectionsOf(program, 1) == Sections{{}, program.lists[1].body});
}

TEST_CASE("a body that keeps to its step has no sections") {
  const Program program = MustCompile("1f1b", {3, 4});
  CHECK(!program.overlaps);
  CHECK(SectionsOf(program, 0) == Sections());
}

// The epilogue of the last step would have a micro-batch of a step that does not exist.
TEST_CASE("a micro-batch of the next step stands in a body alone") {
  const std::string text = Print(MustCompile("pipedream-2bw", {2, 2}));
  for (const char* section : {" prologue\n", " epilogue\n"}) {
    std::string wrong = text;
    wrong.insert(wrong.find(section) + std::strlen(section), "  FW        s0 m2 v0\n");
    CHECK_THAT(Parse(wrong, "text").status().message(),
               Catch::Contains("'FW        s0 m2 v0' (FW s0 to s1, m0 to m1"));
  }
}

TEST_CASE("micro-batches of the next step are there only if steps overlap") {
  Program program = MustCompile("pipedream-2bw", {2, 2});
  CHECK(CheckFields(program).ok());
  program.lists[0].body[0].micro = 4;
  CHECK_THAT(CheckFields(program).message(), Catch::EndsWith("micro 4 (0 to 3)"));
  program = MustCompile("1f1b", {2, 2});
  program.lists[0].body[0].micro = 2;
  CHECK_THAT(CheckFields(program).message(), Catch::EndsWith("micro 2 (0 to 1)"));
}

TEST_CASE("a section that does not follow from its body is refused, where it is") {
  const std::string text = Print(MustCompile("pipedream", {2, 2}));
  REQUIRE(Parse(text, "text").ok());
  // An instruction of the prologue comes twice, and one of the epilogue is missing.
  const size_t prologue = text.find("  FW ", text.find(" prologue\n"));
  const size_t epilogue = text.find("  FW ", text.find(" epilogue\n"));
  const auto line_at = [&](size_t at) { return text.substr(at, text.find('\n', at) + 1 - at); };
  std::string wrong = text;
  wrong.insert(prologue, line_at(prologue));
  CHECK_THAT(Parse(wrong, "text").status().message(),
             Catch::StartsWith("text: line ") && Catch::Contains("device 0: its prologue has 'FW"));
  wrong = text;
  wrong.erase(epilogue, line_at(epilogue).size());
  CHECK_THAT(Parse(wrong, "text").status().message(),
             Catch::Contains("device 0: its epilogue has ") && Catch::Contains("'FW s0 m1"));
}

TEST_CASE("unrolled, micro-batches count on") {
  const Program program = MustCompile("pipedream-2bw", {2, 2});
  const Program unrolled = Unroll(program, 2);
  CHECK(!unrolled.overlaps);
  CHECK(unrolled.microbatches == 6);
  CHECK(unrolled.pipe_of == std::vector<int32_t>(6, 0));
  CHECK(TextOf(unrolled.lists[0].body) ==
        "FW s0 m0 v0, FW s0 m1 v1, BW s0 m0 v1, FW s0 m2 v0, BW s0 m1 v1, FW s0 m3 v1, "
        "BW s0 m2 v1, FW s0 m4 v0, BW s0 m3 v1, FW s0 m5 v1, BW s0 m4 v1, BW s0 m5 v1");
  for (int bodies : {0, 1, 3}) {
    size_t instructions = 0;
    for (const DeviceList& list : Unroll(program, bodies).lists) instructions += list.body.size();
    size_t expected = 0;
    for (const DeviceList& list : program.lists) expected += (bodies + 1) * list.body.size();
    CHECK(instructions == expected);
  }
}

}  // namespace pp
