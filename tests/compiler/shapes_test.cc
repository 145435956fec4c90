// Plans whose micro-batches differ in length and number of sequences (--shapes): what they hold and
// take, and that they train what one device does.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/simulate.h"
#include "schema/format/file.h"
#include "schema/model/work.h"
#include "schema/model/workspace.h"
#include "schema/proof/verify.h"
#include "schema/semantics/cost_model.h"
#include "schema/semantics/extents.h"
#include "schema/semantics/memory.h"
#include "schema/text.h"
#include "tests/data_bytes.h"
#include "tests/must_compile.h"
#include "tests/saved_run.h"

namespace pp {
namespace {

// Neither of the last two is smaller than the other in all of its sizes.
constexpr const char* kShapes = "4x3,2x8x2,2x5x4";

Shapes ShapesOf(const std::string& text) {
  Shapes shapes;
  REQUIRE(ReadShapes(text, &shapes).ok());
  return shapes;
}

CompileOptions OptionsOf(std::string_view scheme, int devices, const std::string& shapes) {
  CompileOptions options{
      .scheme = std::string(scheme), .shape = {devices, 0, 0}, .job = {.model = TinyModel(false)}};
  options.job.shapes = ShapesOf(shapes);
  return options;
}

TEST_CASE("a value has the bytes, and an instruction the time, of its micro-batch's shape") {
  const Program plan = MustCompile(OptionsOf("1f1b", 2, kShapes));
  CHECK(plan.microbatches == 8);
  CHECK(plan.shape_of == std::vector<int32_t>{0, 0, 0, 0, 1, 1, 2, 2});
  CHECK(plan.job->micro_batch_size == 2);
  CHECK(plan.job->sequence_length == 8);
  const ValueBytes bytes(plan);
  const Durations durations(*CostsOf(plan), plan);
  const double mean = [&] {
    const Program first = MustCompile(OptionsOf("1f1b", 2, "8x3"));
    double sum = 0;
    for (int s = 0; s < 2; ++s)
      sum += WorkOf(LayoutStage(*first.job, s), *first.job).forward.operations;
    return sum / 2;
  }();
  for (int m = 0; m < 8; ++m)
    for (int s = 0; s < 2; ++s) {
      const Job job = plan.job->OfShape(plan.shape_of[m]);
      const StageLayout layout = LayoutStage(job, s);
      CHECK(bytes({Kind::kStash, s, m}) == layout.stash_bytes);
      CHECK(bytes({Kind::kAct, s, m}) == layout.act_bytes);
      CHECK(bytes({Kind::kWork, s, m}) == layout.work_bytes);
      const StageWork work = WorkOf(layout, job);
      CHECK(durations({.op = Op::kForward, .stage = s, .micro = m}) ==
            Approx(work.forward.operations / mean));
      CHECK(durations({.op = Op::kBackwardWeight, .stage = s, .micro = m}) ==
            Approx(work.weight.operations / mean));
      // What is given for the first shape alone.
      const Durations given(*ParseCosts("f=1,b=3,comm=2"), plan);
      const StageWork first = WorkOf(LayoutStage(plan.job->OfShape(0), s), plan.job->OfShape(0));
      CHECK(given({.op = Op::kForward, .stage = s, .micro = m}) ==
            Approx(work.forward.operations / first.forward.operations));
      if (s == 0)
        CHECK(given({.op = Op::kSendAct, .stage = s, .micro = m}) ==
              Approx(2.0 * static_cast<double>(job.tokens()) / 3));
    }
}

TEST_CASE(
    "plans of several shapes are proved, printed and written, and hold what the largest need") {
  for (const std::string& scheme : SteppingSchemes())
    for (const char* passes : {"", "mario"})
      for (const int tp : {1, 2}) {
        CompileOptions options = OptionsOf(scheme, 2, kShapes);
        options.passes = passes;
        options.replicas = 2;
        options.job.tp = tp;
        options.job.model.vocab_size = 62;
        const auto plan = Compile(options);
        if (!plan.ok()) {  // mario of backwards in halves
          CHECK(*passes != '\0');
          continue;
        }
        INFO(scheme << " " << passes);
        CHECK(Verify(*plan, Depth::kPlan).message() == "");
        const auto text = Parse(Print(*plan), "text");
        REQUIRE(text.status().message() == "");
        CHECK(text->job == plan->job);
        CHECK(text->shape_of == plan->shape_of);
        CHECK(*Decode(*Encode(*plan), "x.plan") == *plan);
        const Extents extents(*plan);
        for (const DeviceList& list : plan->lists)
          for (const Region& region : list.regions) {
            int64_t most = 0;
            for (int shape = 0; shape < 3; ++shape)
              most = std::max(most, region.kind == Kind::kWorkspace
                                        ? WorkspaceOf(extents.job(shape)).bytes
                                        : extents.Of(0, shape).scratch_bytes);
            if (region.kind == Kind::kWorkspace || region.kind == Kind::kScratch)
              CHECK(region.bytes >= most);
          }
        // Two places for one value, as if it were of another shape.
        Program broken = *plan;
        broken.shape_of.assign(8, 1);
        CHECK(!Verify(broken, Depth::kPlan).ok());
      }
}

std::function<void(CompileOptions*)> WithShapes(const std::string& text) {
  return [shapes = ShapesOf(text)](CompileOptions* options) {
    options->shape.microbatches = 0;
    options->job.shapes = shapes;
  };
}

// A device alone, micro-batch after micro-batch.
const Layout kOne = {"1f1b"};

TEST_CASE("micro-batches of several shapes train with the bits of one device") {
  const Folder folder;
  for (const bool llama : {false, true}) {
    const ModelConfig model = TinyModel(llama);
    std::vector<StepReport> steps;
    const Outcome one =
        Run(model, kOne, folder, {.until = 4, .plan = WithShapes(kShapes), .steps = &steps});
    REQUIRE(one.status.message() == "");
    REQUIRE(one.numbers.size() == 8);
    for (const char* scheme : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "hanayo"})
      for (const char* passes : {"", "mario"}) {
        const Layout layout{scheme, 2};
        const auto plan = [&](CompileOptions* options) {
          WithShapes(kShapes)(options);
          options->passes = passes;
        };
        CompileOptions tried = OptionsOf(scheme, 2, kShapes);
        tried.passes = passes;
        if (!Compile(tried).ok()) continue;
        INFO(scheme << " " << passes);
        CHECK(Run(model, layout, folder, {.until = 4, .plan = plan}).numbers == one.numbers);
      }
    for (const Layout& layout :
         {Layout{"1f1b", 1, 2}, {"1f1b", 2, 2}, {"chimera", 2}, {"zb-v", 2, 2}}) {
      if (std::string_view(layout.scheme) == "chimera" && !llama) continue;
      for (const bool shares : {false, true}) {
        if (shares && layout.tp == 1) continue;
        INFO(layout.Text());
        const auto plan = [&](CompileOptions* options) {
          WithShapes("4x4,2x8x2,2x6x4")(options);
          options->job.sequence_parallel = shares;
        };
        const Outcome alone =
            Run(model, kOne, folder, {.until = 4, .plan = WithShapes("4x4,2x8x2,2x6x4")});
        const Outcome other = Run(model, layout, folder, {.until = 4, .plan = plan});
        REQUIRE(other.status.message() == "");
        for (size_t i = 0; i < alone.numbers.size(); ++i)
          CHECK(other.numbers[i] == Approx(alone.numbers[i]).epsilon(2e-5));
      }
    }
  }
}

// What a shape leaves out of a sequence is not trained; what it takes is as a plan of that length
// has it.
TEST_CASE("a micro-batch has the first tokens of its sequences") {
  ModelConfig model = TinyModel(false);
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0;
  const Folder folder;
  std::string text;
  for (int i = 0; i < 8 * 40 + 1; ++i) text += static_cast<char>(1 + (7 * i * i + 3 * i) % 60);
  const std::string data = folder / "data.txt";
  std::ofstream(data) << text;
  const auto loss_of = [&](const std::string& file, const std::string& shapes) {
    std::vector<StepReport> steps;
    const Outcome outcome = Run(model, kOne, folder,
                                {.until = 1,
                                 .data = file,
                                 .plan = WithShapes(shapes),
                                 .options = [](TrainOptions* o) { o->optimizer.learning_rate = 0; },
                                 .steps = &steps});
    REQUIRE(outcome.status.message() == "");
    return steps.at(0).loss;
  };
  // Sequences 0 to 2 of 8 tokens, of which 5, 8 and 3 are taken, in two micro-batches and one.
  double sum = 0;
  for (const auto& [first, tokens] : {std::pair{0, 5}, {8, 8}, {16, 3}}) {
    const std::string one = folder / fmt::format("one{}.txt", first);
    std::ofstream(one) << text.substr(first, tokens + 1);
    sum += tokens * loss_of(one, fmt::format("1x{}", tokens));
  }
  CHECK(loss_of(data, "1x5,1x8,1x3") == Approx(sum / 16).epsilon(1e-6));
}

TEST_CASE("epochs and a resumed training of several shapes") {
  const ModelConfig model = TinyModel(false);
  const Folder straight, stopped;
  const Outcome whole = Run(model, kOne, straight, {.until = 6, .plan = WithShapes(kShapes)});
  REQUIRE(
      Run(model, {"1f1b", 2}, stopped, {.until = 3, .save_every = 1, .plan = WithShapes(kShapes)})
          .status.ok());
  CHECK(Run(model, {"zb-v", 2}, stopped, {.until = 6, .resume = true, .plan = WithShapes(kShapes)})
            .numbers == std::vector<double>(whole.numbers.begin() + 6, whole.numbers.end()));
  // 37 sequences, of which a step takes 16: in the third one 11 are missing.
  std::vector<StepReport> steps;
  const Folder folder;
  const std::string data = folder.WriteText("short.txt", 37 * 8 + 1);
  const auto epochs = [&](const Layout& layout) {
    return Run(model, layout, folder,
               {.data = data,
                .plan = WithShapes(kShapes),
                .options = [](TrainOptions* options) { options->epochs = 2; },
                .steps = &steps})
        .numbers;
  };
  const std::vector<double> one = epochs(kOne);
  REQUIRE(steps.size() == 6);
  CHECK(epochs({"zb-h1", 2}) == one);
}

TEST_CASE(
    "the peak of every rank is the plan's, and what fit-memory finds within a limit trains alike") {
  const ModelConfig model = TinyModel(false);
  const Folder folder;
  std::vector<StepReport> steps;
  Program program;
  const auto limited = [&](double part) {
    return [&, part](CompileOptions* options) {
      WithShapes("6x3,4x8x2,6x5")(options);
      int64_t most = 0;
      for (const DeviceList& list : MustCompile(*options).lists)
        most = std::max(most, list.arena_bytes);
      if (part < 1) options->fit.limit = {MemoryLimit::kBytes, {part * static_cast<double>(most)}};
      program = MustCompile(*options);
      for (const DeviceList& list : program.lists)
        CHECK(static_cast<double>(list.arena_bytes) <= part * static_cast<double>(most));
    };
  };
  const Outcome one = Run(model, kOne, folder, {.until = 2, .plan = WithShapes("6x3,4x8x2,6x5")});
  const std::string validation =
      folder.WriteText("validation.txt", 4000);  // arenas are for it, too
  const auto validates = [&](TrainOptions* options) { options->val_data = {validation}; };
  for (const double part : {1.0, 0.985, 0.97}) {
    INFO(part);
    const Outcome outcome =
        Run(model, {"1f1b", 4}, folder,
            {.until = 2, .plan = limited(part), .options = validates, .steps = &steps});
    CHECK(outcome.numbers == one.numbers);
    for (int d = 0; d < 4; ++d) CHECK(steps.back().peak_bytes[d] == program.lists[d].arena_bytes);
  }
}

}  // namespace
}  // namespace pp
