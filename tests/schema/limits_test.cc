// Sizes that are mistakes: an error comes before memory is allocated or a sum overflows.
#include <catch2/catch.hpp>

#include "schema/model/layout.h"
#include "schema/proof/verify.h"
#include "schema/text.h"
#include "tests/models.h"
#include "tests/sample_program.h"

TEST_CASE("a text with two billion micro-batches") {
  const auto program =
      pp::Parse("program x stages 1 microbatches 2147483647\ndevice 0 holds s0\n", "x");
  CHECK(program.status().message() ==
        "x: line 1: 'program x stages 1 microbatches 2147483647' (at most 16777216 stages or "
        "micro-batches)");
}

TEST_CASE("a text with many micro-batches and no instructions") {
  const auto program =
      pp::Parse("program x stages 1 microbatches 10000000\ndevice 0 holds s0\n", "x");
  REQUIRE(program.ok());
  CHECK(pp::Verify(*program, pp::Depth::kLists).message() ==
        "device 0: 0 instructions for 10000000 micro-batches (at least one for each on each of "
        "its stages)");
}

TEST_CASE("a model whose sizes do not fit 64 bits") {
  pp::Job job;
  job.model = pp::Gpt2Model({.vocab_size = 1 << 24,
                             .max_positions = 1 << 24,
                             .hidden_size = 1 << 18,
                             .layers = 1 << 16,
                             .heads = 1 << 18,
                             .intermediate_size = 1 << 20});
  job.micro_batch_size = 4;
  job.sequence_length = 1 << 24;
  job.layers_per_stage = {1 << 16};
  CHECK(pp::CheckJob(job).message() ==
        "model: its weights and one micro-batch take about 1.7e+20 bytes (at most 1e+16)");
}

TEST_CASE("an empty region hides no other, as there is none") {
  pp::Program program = pp::SampleProgram({.devices = 1, .microbatches = 1, .model = true});
  pp::DeviceList& list = program.lists[0];
  const int64_t begin = list.regions[0].offset;
  list.regions.insert(list.regions.begin(), {pp::Kind::kExchange, -1, -1, begin, 0});
  list.body[0].offset[0] = begin;  // tokens on the weights
  CHECK(pp::Verify(program, pp::Depth::kPlan).message() ==
        "device 0: a region of 0 bytes for exchange (the device needs none, or no second)");
  list.regions.erase(list.regions.begin());
  CHECK_THAT(pp::Verify(program, pp::Depth::kPlan).message(),
             Catch::EndsWith("overlaps a value in use"));
}

TEST_CASE("a device that holds no stage") {
  const auto program = pp::Parse(
      "program x stages 1 microbatches 1\ndevice 0 holds s0\n  LOAD s0 m0\n  FW s0 m0\n  BW s0 m0\n"
      "device 1 holds\n",
      "x");
  REQUIRE(program.status().message() == "");
  CHECK(pp::Verify(*program, pp::Depth::kSchedule).message() == "device 1 holds no stage");
}

TEST_CASE("a plan without a region that its model needs") {
  const pp::Program right = pp::SampleProgram({.devices = 2, .model = true});
  for (size_t i = 0; i < right.lists[1].regions.size(); ++i) {
    pp::Program program = right;
    pp::Region& region = program.lists[1].regions[i];
    region.bytes -= 1;
    const std::string error = pp::Verify(program, pp::Depth::kPlan).message();
    CHECK(error == "device 1: " + pp::ToText(pp::Value{region.kind, region.stage}) + " has " +
                       std::to_string(region.bytes) + " bytes (" +
                       std::to_string(region.bytes + 1) + ")");
  }
}

TEST_CASE("what a file may hold, a text may hold: the model's numbers") {
  pp::Program program = pp::SampleProgram({.devices = 1, .model = true});
  for (float epsilon : {1e-12f, 0x1.fffffep-1f}) {
    program.job->model.norm_epsilon = epsilon;
    CHECK(pp::CheckJob(*program.job).ok());
    const auto parsed = pp::Parse(pp::Print(program), "x");
    REQUIRE(parsed.status().message() == "");
    CHECK(parsed->job->model.norm_epsilon == epsilon);
  }
  program.job->model.norm_epsilon = 1e-13f;
  CHECK(!pp::CheckJob(*program.job).ok());
}
