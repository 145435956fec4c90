// The mean document of a list of lengths, and what attention is priced by.
#include "compiler/document_lengths.h"

#include <catch2/catch.hpp>

#include "compiler/machine/costs.h"
#include "compiler/machine/machine.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

std::string Error(const char* text) {
  const Result<int> mean = MeanDocument(text, 8);
  return mean.ok() ? "" : mean.status().message();
}

TEST_CASE("the document of a mean token") {
  CHECK(*MeanDocument("5 3\n", 8) == 5);
  CHECK(*MeanDocument("8 1\n", 8) == 8);
  CHECK(*MeanDocument("1 8\n4 2\n8 1\n", 8) == 4);  // (8 + 32 + 64) / 24
  CHECK(*MeanDocument("20 1\n", 8) == 7);           // (64 + 64 + 16) / 20
  CHECK(*MeanDocument("1000000007 1\n", 8) == 8);
  CHECK(*MeanDocument("3 0\n5 1", 8) == 5);
  const std::string right = " (TOKENS DOCUMENTS, as in 512 3: what tools/tokens --lengths writes)";
  CHECK(Error("") == "has no documents (at least one)");
  CHECK(Error("3 0\n") == "has no documents (at least one)");
  for (const char* line : {"3", "0 1", "-3 1", "3 -1", "3 1 1", "three 1", "3\t1", "3 1.5"})
    CHECK(Error((std::string("5 1\n") + line + "\n").c_str()) ==
          "line 2: '" + Shown(line) + "'" + right);
}

// A row of T tokens has the pairs of its documents: as many as of documents of the mean length.
TEST_CASE("attention is priced by documents, and only attention") {
  CompileOptions options{.scheme = "1f1b",
                         .shape = {2, 4},
                         .job = {.model = SmallModel("gpt2", true, /*layers=*/2, /*positions=*/512),
                                 .micro_batch_size = 4}};
  const auto costs = [&](int length) {
    options.job.documents = length > 0;
    options.job.document_length = length;
    Machine machine = *FindMachine("cpu");
    machine.memory_bandwidth = 0;  // operations alone take time
    return *CostsOn(machine, MustCompile(options));
  };
  const CostModel rows = costs(0), whole = costs(512), half = costs(256), quarter = costs(128);
  CHECK(whole.f == rows.f);
  CHECK(whole.f[0] - half.f[0] == Approx(2 * (half.f[0] - quarter.f[0])));
  CHECK(whole.bi[0] - half.bi[0] == Approx(2.5 * (whole.f[0] - half.f[0])));
  CHECK(quarter.f[0] < half.f[0]);
  CHECK(whole.bw == quarter.bw);
}

}  // namespace
}  // namespace pp
