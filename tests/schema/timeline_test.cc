#include "schema/format/timeline.h"

#include <catch2/catch.hpp>

#include "tests/sample_program.h"

namespace pp {
namespace {

TEST_CASE("one event an instruction, under its own text") {
  const Program program = SampleProgram({.devices = 2, .microbatches = 1});
  int forward = 0;
  while (program.lists[1].body[forward].op != Op::kForward) ++forward;
  int receive = 0;
  while (program.lists[1].body[receive].op != Op::kRecvAct) ++receive;
  const std::vector<Event> events = {
      {.rank = 1, .device = 1, .index = receive, .step = 2, .start = 0.5, .duration = 0.25},
      {.rank = 1, .device = 1, .index = forward, .step = 2, .start = 0.75, .duration = 1e-6}};
  const std::string text = ChromeTrace(program, events);
  CHECK(text ==
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
        R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 1"}},)"
        "\n"
        R"({"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":1}},)"
        "\n"
        R"({"ph":"M","name":"thread_name","pid":1,"tid":0,"args":{"name":"compute"}},)"
        "\n"
        R"({"ph":"M","name":"thread_sort_index","pid":1,"tid":0,"args":{"sort_index":0}},)"
        "\n"
        R"({"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"receive from d0"}},)"
        "\n"
        R"({"ph":"M","name":"thread_sort_index","pid":1,"tid":3,"args":{"sort_index":3}},)"
        "\n"
        R"({"ph":"X","name":"RECV_act s0 m0 from d0","cat":"RECV_act","pid":1,"tid":3,)"
        R"("ts":500000.000,"dur":250000.000,"args":{"step":2,"index":)" +
            std::to_string(receive) + "}},\n" +
            R"({"ph":"X","name":"FW s1 m0","cat":"FW","pid":1,"tid":0,)"
            R"("ts":750000.000,"dur":1.000,"args":{"step":2,"index":)" +
            std::to_string(forward) + "}}\n]}\n");
}

TEST_CASE("no events") {
  CHECK(ChromeTrace(SampleProgram({}), {}) ==
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n\n]}\n");
}

}  // namespace
}  // namespace pp
