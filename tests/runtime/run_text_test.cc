// The texts of a run, as programs and people see them.
#include "runtime/run/run_text.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace pp {
namespace {

StepReport Sample() {
  return {.step = 12,
          .steps = 200,
          .loss = 2.3456789123,
          .grad_norm = 1.25,
          .learning_rate = 3e-4,
          .seconds = 0.25,
          .tokens_per_second = 8192,
          .peak_bytes = {100, 200}};
}

}  // namespace

TEST_CASE("a step as JSON and as a line") {
  CHECK(ToJson(Sample()) ==
        "{\"step\":12,\"loss\":2.34567891,\"grad_norm\":1.25,\"lr\":0.0003,\"step_seconds\":0.25,"
        "\"tokens_per_second\":8192,\"peak_bytes\":[100,200]}\n");
  CHECK(ToLine(Sample(), 0.25) ==
        "step 12/200  loss 2.3457  norm 1.25  lr 0.0003  8192 tok/s  0:47 left\n");
}

TEST_CASE("a step without a norm") {
  StepReport report = Sample();
  report.grad_norm.reset();
  CHECK_THAT(ToJson(report), Catch::Contains("\"loss\":2.34567891,\"grad_norm\":null,\"lr\""));
  CHECK(ToLine(report, 0.25) == "step 12/200  loss 2.3457  lr 0.0003  8192 tok/s  0:47 left\n");
}

TEST_CASE("a step without targets") {
  StepReport report = Sample();
  report.loss = 0;
  report.grad_norm = 0;
  report.empty = true;
  CHECK_THAT(ToJson(report), Catch::Contains("\"step\":12,\"loss\":null,\"grad_norm\":0,\"lr\""));
  CHECK(ToLine(report, 0.25) ==
        "step 12/200  no targets, no update  norm 0.00  lr 0.0003  8192 tok/s  0:47 left\n");
}

TEST_CASE("a step of a scaled loss") {
  StepReport report = Sample();
  report.loss_scale = 65536;
  CHECK_THAT(ToJson(report),
             Catch::EndsWith("\"peak_bytes\":[100,200],\"loss_scale\":65536,\"skipped\":false}\n"));
  CHECK_THAT(ToLine(report, 0.25), Catch::Contains("  norm 1.25  scale 65536  lr 0.0003  "));
  report.skipped = true;
  report.grad_norm = INFINITY;
  CHECK_THAT(ToJson(report),
             Catch::Contains("\"grad_norm\":null,") && Catch::Contains("\"skipped\":true"));
  CHECK_THAT(ToLine(report, 0.25), Catch::Contains("  loss 2.3457  scale 65536, skipped  lr "));
}

TEST_CASE("hours are told only where there are some") {
  StepReport report = Sample();
  report.step = 100;
  CHECK_THAT(ToLine(report, 35.99), Catch::EndsWith("  59:59 left\n"));
  CHECK_THAT(ToLine(report, 36), Catch::EndsWith("  1:00:00 left\n"));
  report.step = 200;
  CHECK_THAT(ToLine(report, 36), Catch::EndsWith("  0:00 left\n"));
}

TEST_CASE("where the time of all ranks went") {
  TrainReport report;
  report.time.resize(2);
  for (TimeSpent& rank : report.time)
    rank = {.total = 2, .kernels = 1.5, .waiting = 0.25, .own = 0.01, .instructions = 5000};
  report.time[1].communication[CommKind::kGradients] = {.total = 3, .exposed = 0.75};
  CHECK(SummaryText(report) ==
        "kernels 75.0 %  waiting 12.5 %  runtime 2.00 us per instruction (0.50 %)\n"
        "gradients 1.500 s per rank, 75.0 % hidden behind compute\n");
  report.time[0].starting = 0.1;
  CHECK_THAT(SummaryText(report), Catch::Contains("(0.50 %)  starting kernels 2.5 %\n"));
}

TEST_CASE("a sample as bytes and as tokens") {
  TrainReport report{.sample = {'A', 'b', 'c'}, .prompt = 1, .text = true};
  CHECK(SampleText(report) == "sample: A|bc\n");
  report.sample = {'A', 0xc3, 0xa4, '\n', '\t', 0x1b,
                   '[', '\n', 0x80, 0xe2, 0x82};  // an a with dots
  CHECK(SampleText(report) == "sample: A|\xc3\xa4\n\t\\x1b[\n\\x80\\xe2\\x82\n");
  report.sample = {'A', 'b', 300};
  CHECK(SampleText(report) == "sample: A|b<300>\n");
  report.text = false;
  CHECK(SampleText(report) == "sample: 65 | 98 300\n");
  report.prompt = 3;
  CHECK(SampleText(report).empty());
}

}  // namespace pp
