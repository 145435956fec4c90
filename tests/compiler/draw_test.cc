#include "compiler/draw.h"

#include <catch2/catch.hpp>
#include <string>

#include "compiler/draw/picture.h"
#include "schema/base/units.h"
#include "schema/text.h"

namespace pp {
namespace {

// Two pipes in opposite directions (Chimera), and times for device 0's list.
Program TwoPipes() {
  auto program = Parse(
      "program x stages 2 microbatches 2\n"
      "pipe d0 d1\npipe d1 d0\nmicro-batches on pipes 0 1\n"
      "device 0 holds s0 s1\n  FW s0 m0\n  SEND_act s0 m0 to d1\n  RECV_act s0 m1 from d1\n"
      "  WAIT act s0 m1\n  FW s1 m1\n  BW s0 m0\n"
      "device 1 holds s0 s1\n",
      "x.txt");
  REQUIRE(program.ok());
  return *program;
}

TEST_CASE("a WAIT begins where the device comes to it") {
  const Program program = TwoPipes();
  const Execution execution{{{{0, 1}, {1, 1}, {2, 3}, {3, 3}, {3, 4}, {4, 6}}, {}}, 6};
  const auto spans = SpansWithWaits(program, execution)[0];
  CHECK(spans[3].start == 1);
  CHECK(spans[3].end == 3);
  CHECK(spans[4].start == 3);
}

TEST_CASE("a lane for each peer and direction, compute first") {
  const Program program = TwoPipes();
  const Execution execution{{{{0, 1}, {1, 1}, {2, 3}, {3, 3}, {3, 4}, {4, 6}}, {}}, 6};
  const auto tracks = Tracks(program, execution)[0];
  REQUIRE(tracks.size() == 3);
  CHECK(tracks[0].lane.name == "compute");
  CHECK(tracks[0].boxes.size() == 4);
  CHECK(tracks[1].lane.name == "send to d1");
  CHECK_FALSE(tracks[1].TakesTime());
  CHECK(tracks[2].lane.name == "receive from d1");
  CHECK(tracks[2].TakesTime());
}

TEST_CASE("two instructions that run as one share the height") {
  const Program program = TwoPipes();
  const Execution execution{{{{0, 1}, {1, 1}, {1, 3}, {3, 3}, {3, 6}, {3, 6}}, {}}, 6};
  const auto boxes = Tracks(program, execution)[0][0].boxes;
  REQUIRE(boxes.size() == 4);
  CHECK(boxes[0].height == Height::kWhole);
  CHECK(boxes[1].height == Height::kWhole);  // the WAIT
  CHECK(boxes[2].height == Height::kUpper);
  CHECK(boxes[3].height == Height::kLower);
  const auto grid = Grid(program, execution, Paint::kPlain);
  REQUIRE(grid.ok());
  CHECK(*grid ==
        "d0 |    F0     .     . F1&B0 ----- -----\n"
        "d1 |     .     .     .     .     .     .\n");
}

TEST_CASE("pipes have shades, and without pipes a device's stages") {
  Program program = TwoPipes();
  const auto& list = program.lists[0].body;
  CHECK(Shades(program).Of(0, list[0]).number == 0);
  CHECK(Shades(program).Of(0, list[4]).number == 1);
  CHECK(ColourOf(Op::kForward, {0, 2}) == "#77aadd");
  CHECK(ColourOf(Op::kForward, {1, 2}) == "#5a81a8");
  program.pipes = {{{0, 0}}};
  program.pipe_of = {0, 0};
  CHECK(Shades(program).Of(0, list[0]).number == 0);
  CHECK(Shades(program).Of(0, list[4]).number == 1);
}

// Sorting the device's stages for each of them would take minutes.
TEST_CASE("shades of many stages") {
  constexpr int kStages = 100'000;
  Program program{.devices = 1, .stages = kStages, .microbatches = 1};
  program.pipes = {{std::vector<int32_t>(kStages, 0)}};
  program.pipe_of = {0};
  const Shades shades(program);
  int right = 0;
  for (int s = 0; s < kStages; ++s)
    right += shades.Of(0, {.op = Op::kForward, .stage = s, .micro = 0}).number == s;
  CHECK(right == kStages);
}

TEST_CASE("a plan in which nothing takes time has its figures") {
  const Program program = TwoPipes();
  const Prediction prediction{.devices = {{}, {}}, .execution = {{std::vector<Span>(6), {}}, 0}};
  const Drawn drawn[] = {{&program, &prediction}, {&program, &prediction}};
  CHECK(Svg(drawn).find("<rect") == std::string::npos);
  const auto grid = Grid(program, prediction.execution, Paint::kPlain);
  REQUIRE(grid.ok());
  CHECK(*grid == "d0 |\nd1 |\n");
}

// The frame of a box is white: one that is too narrow has none, and is wide enough to be seen.
TEST_CASE("what takes little time is seen") {
  const Program program = TwoPipes();
  const Execution execution{{{{0, 1}, {1, 1.0001}, {2, 2.0001}, {3, 3}, {3, 3.01}, {4, 600}}, {}},
                            600};
  const Prediction prediction{.devices = {{}, {}}, .execution = execution};
  const Drawn drawn[] = {{&program, &prediction}};
  const std::string svg = Svg(drawn);
  int narrow = 0;
  for (size_t at = svg.find("<rect"); at != svg.npos; at = svg.find("<rect", at + 1)) {
    const std::string rect = svg.substr(at, svg.find('>', at) - at);
    const double width = std::stod(rect.substr(rect.find("width=\"") + 7));
    INFO(rect);
    CHECK(width >= 0.5);
    CHECK((width < 1) == (rect.find("stroke=\"none\"") != rect.npos));
    narrow += width < 1;
  }
  CHECK(narrow == 4);
}

TEST_CASE("what a plan is drawn beside itself for is in its title") {
  const Program program = TwoPipes();
  const Prediction prediction{.devices = {{}, {}}, .execution = {{std::vector<Span>(6), {}}, 0}};
  const Drawn drawn[] = {{&program, &prediction, ", predicted"},
                         {&program, &prediction, ", measured (step 7)"}};
  for (const std::string& text : {Svg(drawn), Page(drawn)})
    for (const char* title : {"x, predicted", "x, measured (step 7)"})
      CHECK(text.find(title) != std::string::npos);
}

TEST_CASE("bytes") {
  CHECK(BytesText(0) == "0 B");
  CHECK(BytesText(1536) == "1.5 KiB");
  CHECK(BytesText(0x1p30 * 80) == "80 GiB");
}

}  // namespace
}  // namespace pp
