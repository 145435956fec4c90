// Plans whose steps differ (--batch-ramp): their lists, and that they train what one device does.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "schema/check.h"
#include "schema/format/file.h"
#include "schema/format/timeline.h"
#include "schema/proof/verify.h"
#include "schema/routines.h"
#include "schema/text.h"
#include "tests/data_bytes.h"
#include "tests/must_compile.h"
#include "tests/saved_run.h"

namespace pp {
namespace {

BatchRamp RampOf(const std::string& text) {
  BatchRamp ramp;
  REQUIRE(ReadBatchRamp(text, &ramp).ok());
  return ramp;
}

CompileOptions OptionsOf(std::string_view scheme, const std::string& ramp) {
  CompileOptions options{
      .scheme = std::string(scheme),
      .shape = {2, 0, 0},
      .job = {.model = TinyModel(false), .micro_batch_size = 1, .sequence_length = 8}};
  options.ramp = RampOf(ramp);
  return options;
}

// All schemes of two devices can make these.
constexpr const char *kRamp = "4@0,6@2,8@5", *kRampOfTwo = "2@0,3@2,4@5";

std::vector<Instruction> WithoutMemory(std::vector<Instruction> list) {
  for (Instruction& i : list) std::fill(std::begin(i.offset), std::end(i.offset), int64_t{-1});
  return list;
}

TEST_CASE("a step of a ramp is that of a plan of as many micro-batches") {
  REQUIRE(SteppingSchemes().size() == 14);
  for (const std::string& scheme : SteppingSchemes())
    for (const char* passes : {"", "mario"})
      for (const P2p p2p : {P2p::kAsync, P2p::kBlocking}) {
        CompileOptions options = OptionsOf(scheme, kRamp);
        options.passes = passes;
        options.p2p = p2p;
        options.replicas = 2;
        const auto ramp = Compile(options);
        if (!ramp.ok()) {  // mario of backwards in halves; what blocking messages cannot do
          CHECK((*passes != '\0' || p2p == P2p::kBlocking));
          continue;
        }
        INFO(scheme << " " << passes);
        CHECK(Verify(*ramp, Depth::kPlan).message() == "");
        CHECK(StepSizes(*ramp) == std::vector<int32_t>{4, 6, 8});
        std::vector<int64_t> most(2, 0);
        options.ramp = {};
        for (const int32_t size : {4, 6, 8}) {
          options.shape.microbatches = size;
          const Program alone = MustCompile(options);
          CHECK(PipesOfStep(*ramp, size) == alone.pipe_of);
          for (int d = 0; d < 2; ++d) {
            const DeviceList& list = ramp->lists[d];
            const int at = FindRoutine(*ramp, StepRoutine(size));
            CHECK(WithoutMemory(at < 0 ? list.body : list.routines[at]) ==
                  WithoutMemory(alone.lists[d].body));
            most[d] = std::max(most[d], alone.lists[d].arena_bytes);
          }
        }
        for (int d = 0; d < 2; ++d) {
          // The norm's and the loss's regions are those of the largest steps.
          CHECK(ramp->lists[d].arena_bytes == most[d]);
          CHECK(ramp->lists[d].routines[FindRoutine(*ramp, kEvaluationRoutine)].size() > 0);
        }
        const auto bytes = Encode(*ramp);
        REQUIRE(bytes.ok());
        CHECK(*Decode(*bytes, "x.plan") == *ramp);
        const auto text = Parse(Print(*ramp), "text");
        REQUIRE(text.status().message() == "");
        CHECK(text->routines == ramp->routines);
        CHECK(text->ramp == ramp->ramp);
      }
}

std::function<void(CompileOptions*)> WithRamp(const std::string& text) {
  return [ramp = RampOf(text)](CompileOptions* options) { options->ramp = ramp; };
}

const Layout kOne = {"1f1b"};

TEST_CASE("every step of a ramp has the bits of one device") {
  const Folder folder;
  for (const bool llama : {false, true}) {
    const ModelConfig model = TinyModel(llama);
    const Outcome one = Run(model, kOne, folder, {.until = 8, .plan = WithRamp(kRamp)});
    REQUIRE(one.status.message() == "");
    REQUIRE(one.numbers.size() == 16);
    // A step of fewer micro-batches is another step.
    const Outcome plain = Run(model, kOne, folder, {.until = 8});
    CHECK(plain.numbers[0] != one.numbers[0]);
    for (const char* scheme : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "hanayo"}) {
      INFO(scheme);
      CHECK(Run(model, {scheme, 2}, folder, {.until = 8, .plan = WithRamp(kRamp)}).numbers ==
            one.numbers);
    }
    // Sums in another order, of replicas, peers and pipes.
    for (const auto& [layout, ramp] : {std::pair{Layout{"1f1b", 2, 1, 2}, kRampOfTwo},
                                       {{"zb-v", 2, 1, 2, 1}, kRampOfTwo},
                                       {{"1f1b", 1, 2}, kRamp},
                                       {{"chimera", 2}, kRamp}}) {
      INFO(layout.Text());
      if (std::string_view(layout.scheme) == "chimera" && !llama) continue;
      const Outcome other = Run(model, layout, folder, {.until = 8, .plan = WithRamp(ramp)});
      REQUIRE(other.status.message() == "");
      for (size_t i = 0; i < one.numbers.size(); ++i)
        CHECK(other.numbers[i] == Approx(one.numbers[i]).epsilon(2e-5));
    }
  }
}

TEST_CASE("a training goes on in the middle of a ramp, also under another layout") {
  const ModelConfig model = TinyModel(false);
  const Folder straight;
  const Outcome whole = Run(model, kOne, straight, {.until = 8, .plan = WithRamp(kRamp)});
  for (const int stop : {1, 2, 4, 5, 6}) {
    INFO("after " << stop << " steps");
    const auto saved = [&](const Folder& folder) {
      const Outcome first = Run(model, {"1f1b", 2}, folder,
                                {.until = stop, .save_every = 1, .plan = WithRamp(kRamp)});
      REQUIRE(first.status.message() == "");
    };
    const std::vector<double> rest(whole.numbers.begin() + 2 * stop, whole.numbers.end());
    const Folder same, other;
    saved(same);
    CHECK(Run(model, {"zb-v", 2}, same, {.until = 8, .resume = true, .plan = WithRamp(kRamp)})
              .numbers == rest);
    saved(other);
    const Outcome replicas = Run(model, {"1f1b", 2, 1, 2}, other,
                                 {.until = 8, .resume = true, .plan = WithRamp(kRampOfTwo)});
    REQUIRE(replicas.numbers.size() == rest.size());
    for (size_t i = 0; i < rest.size(); ++i)
      CHECK(replicas.numbers[i] == Approx(rest[i]).epsilon(2e-5));
    // The same sequences a step, so nothing to say of them; another ramp is said.
    const auto says = [](const Outcome& outcome, const char* what) {
      return std::any_of(outcome.notes.begin(), outcome.notes.end(),
                         [&](const std::string& note) { return note.find(what) != note.npos; });
    };
    CHECK(!says(replicas, "sequences a step"));
    const Folder third;
    saved(third);
    CHECK(says(Run(model, kOne, third, {.until = 8, .resume = true, .plan = WithRamp("4@0,8@7")}),
               "sequences a step: 4@0,8@7 (before"));
  }
}

// 4000 bytes are 500 sequences; of 37 there are 6 full steps of 6 and one more.
TEST_CASE("the last step of an epoch is the smallest that holds the rest") {
  const ModelConfig model = TinyModel(false);
  const Folder folder;
  const std::string data = folder.WriteText("short.txt", 37 * 8 + 1);
  const auto run = [&](const Layout& layout, const std::string& ramp,
                       std::vector<StepReport>* steps) {
    return Run(model, layout, folder,
               {.data = data,
                .plan = WithRamp(ramp),
                .options = [&](TrainOptions* options) { options->epochs = 2; },
                .steps = steps});
  };
  std::vector<StepReport> steps;
  // 2, 2, then 4s: 33 sequences are 8 steps of 4 and one of 2, which holds one.
  const Outcome one = run(kOne, "2@0,4@2", &steps);
  REQUIRE(one.status.message() == "");
  REQUIRE(steps.size() == 2 + 9 + 10);
  const Outcome two = run({"zb-h1", 2}, "2@0,4@2", nullptr);
  CHECK(two.numbers == one.numbers);
  // The same steps filled up to four micro-batches compute the same, as what fills them does not
  // count: there is no dropout in what is compared.
  ModelConfig plain = model;
  plain.embedding_dropout = plain.attention_dropout = plain.residual_dropout = 0;
  const auto numbers = [&](const std::string& ramp) {
    return Run(plain, kOne, folder,
               {.data = data,
                .plan = WithRamp(ramp),
                .options = [](TrainOptions* options) { options->epochs = 2; }})
        .numbers;
  };
  CHECK(numbers("4@0,2@1000") == numbers("4@0"));
}

TEST_CASE("a trace knows the steps of a ramp") {
  const Folder folder;
  std::vector<Event> events;
  Program program;
  const Outcome outcome = Run(TinyModel(false), {"1f1b", 2}, folder,
                              {.until = 8,
                               .plan =
                                   [&](CompileOptions* options) {
                                     options->ramp = RampOf(kRamp);
                                     program = MustCompile(*options);
                                   },
                               .options = [](TrainOptions* options) { options->record = true; },
                               .events = &events});
  REQUIRE(outcome.status.ok());
  std::map<int, std::set<int>> routines;  // by step
  for (const Event& event : events) routines[event.step].insert(event.routine);
  const int small = FindRoutine(program, "step-4"), middle = FindRoutine(program, "step-6");
  for (const auto& [step, found] : routines) {
    INFO("step " << step);
    CHECK(found == std::set<int>{step <= 2 ? small : step <= 5 ? middle : -1});
  }
  CHECK(routines.size() == 8);
  size_t all = 0;
  for (const DeviceList& list : program.lists)
    all +=
        2 * list.routines[small].size() + 3 * list.routines[middle].size() + 3 * list.body.size();
  CHECK(events.size() == all);
  const auto read = ParseChromeTrace(program, ChromeTrace(program, events));
  REQUIRE(read.status().message() == "");
  REQUIRE(read->size() == events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    CHECK((*read)[i].routine == events[i].routine);
    CHECK((*read)[i].index == events[i].index);
  }
}

}  // namespace
}  // namespace pp
