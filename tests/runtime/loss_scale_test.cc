// fp16 trains with a scaled loss (kernels/loss_scale.h): an update whose gradients overflow is
// skipped on all ranks alike, and everything else is as if it had never been tried.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/compare/comparison.h"
#include "runtime/device/cpu_kernels.h"
#include "runtime/model/executor.h"
#include "tests/folder.h"
#include "tests/kept_report.h"
#include "tests/late_device.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kMicros = 4, kTokens = 8;

// No dropout, as its masks depend on a sequence's index.
Program PlanOf(CompileOptions options, const std::string& family = "gpt2",
               Dtype dtype = Dtype::kFp16) {
  ModelConfig model = SmallModel(family, true, /*layers=*/4, kTokens, /*llama_heads=*/4);
  model.embedding_dropout = model.attention_dropout = model.residual_dropout = 0;
  options.job.model = model;
  options.job.dtype = dtype;
  return MustCompile(options);
}

// A text from its letter `from` on.
std::string DataFrom(const Folder& folder, int64_t from) {
  std::ofstream out(folder / "text.txt");
  for (int64_t i = from; i < from + 20000; ++i) out << static_cast<char>(' ' + i * i % 29);
  return folder / "text.txt";
}

struct Run {
  int steps = 6;
  double scale = 65536;
  int64_t every = 2000, from = 0;
  double learning_rate = 1e-3;
  const LateDevices* late = nullptr;
  std::function<void(StageCall*)> bend = {};
  std::string save = {};  // a folder, with a checkpoint every two steps
  bool resume = false, compare = false;
};

class BentExecutor : public StageExecutor {
 public:
  BentExecutor(std::unique_ptr<StageExecutor> inner, std::function<void(StageCall*)> bend)
      : inner_(std::move(inner)), bend_(std::move(bend)) {}
  void Run(const StageCall& call) override {
    StageCall bent = call;
    bend_(&bent);
    inner_->Run(bent);
  }

 private:
  const std::unique_ptr<StageExecutor> inner_;
  const std::function<void(StageCall*)> bend_;
};

KeptReport Train(const Program& program, const Run& run) {
  const Folder folder;
  TrainOptions options;
  options.data = {DataFrom(folder, run.from)};
  options.optimizer.steps = run.steps;
  options.optimizer.learning_rate = run.learning_rate;
  if (!run.resume) options.optimizer.loss_scale = run.scale;
  options.optimizer.loss_scale_every = run.every;
  options.stall_timeout = 60;
  options.compare = run.compare;
  if (run.late != nullptr) run.late->AddTo(&options);
  if (run.bend)
    options.make_executor = [&program, &run, optimizer = options.optimizer](int rank) {
      const Place place = TopologyOf(program).PlaceOf(rank);
      return std::make_unique<BentExecutor>(
          MakeExecutor({.program = &program, .device = place.device, .optimizer = optimizer},
                       MakeCpuKernels(*program.job, 1)),
          run.bend);
    };
  std::optional<SaveFolder> saves;
  if (!run.save.empty()) {
    auto opened = SaveFolder::Open(run.save);
    REQUIRE(opened.ok());
    saves.emplace(std::move(*opened));
    options.save = run.save;
    options.save_to = &*saves;
    options.save_every = 2;
    options.resume = run.resume;
  }
  KeptReport report = TrainAndKeep(program, options);
  if (run.compare) {
    Comparison comparison;
    const Status compared = Compare(program, options, report, &comparison);
    INFO(compared.message());
    CHECK(compared.ok());
    CHECK(comparison.worst < kCompareLimit / 2);
  }
  return report;
}

// Steps before the first one that was not skipped.
int Skipped(const KeptReport& report) {
  const auto good = std::find_if(report.steps.begin(), report.steps.end(),
                                 [](const StepReport& step) { return !step.skipped; });
  return static_cast<int>(good - report.steps.begin());
}

// All values that a step reports, except its own index.
void CheckSame(const StepReport& a, const StepReport& b) {
  CHECK(std::bit_cast<uint64_t>(a.loss) == std::bit_cast<uint64_t>(b.loss));
  CHECK(a.loss_scale == b.loss_scale);
  CHECK(a.skipped == b.skipped);
  if (!a.skipped) CHECK(a.grad_norm == b.grad_norm);
}

}  // namespace

// AdamW's first steps depend most on their number. The data of the second run begins where the
// first one's skips ended.
TEST_CASE("after the skips a run has the bits of one that begins there") {
  struct {
    CompileOptions options;
    const char* family;
  } const cases[] = {{{.scheme = "gpipe", .shape = {1, kMicros}}, "llama"},
                     {{.scheme = "1f1b", .shape = {2, kMicros}}, "gpt2"},
                     {{.scheme = "zb-v", .shape = {2, kMicros, 0}}, "gpt2"},
                     {{.scheme = "chimera", .shape = {2, kMicros}, .zero = 1}, "llama"},
                     {{.scheme = "1f1b", .shape = {2, kMicros}, .replicas = 2, .zero = 1}, "gpt2"},
                     {{.scheme = "1f1b", .shape = {2, kMicros}, .job = {.tp = 2}}, "gpt2"}};
  for (const auto& [options, family] : cases) {
    INFO(options.scheme << " " << family << " tp " << options.job.tp << " dp " << options.replicas);
    const Program program = PlanOf(options, family);
    constexpr int kSteps = 100, kBehind = 6;
    const KeptReport skips = Train(program, {.steps = kSteps, .scale = 1e30});
    INFO(skips.status.message());
    REQUIRE(skips.status.ok());
    const int skipped = Skipped(skips);
    REQUIRE((skipped > 50 && skipped < kSteps - kBehind));
    double scale = static_cast<float>(1e30);
    for (int i = 0; i <= skipped; ++i, scale /= 2) {
      CHECK(skips.steps[i].skipped == (i < skipped));
      CHECK(skips.steps[i].loss_scale == scale);
    }
    const int64_t from = int64_t{skipped} * kMicros * kTokens * options.replicas;
    const KeptReport begins =
        Train(program, {.steps = kBehind, .scale = *skips.steps[skipped].loss_scale, .from = from});
    for (int i = 0; i < kBehind; ++i) CheckSame(skips.steps[skipped + i], begins.steps[i]);
  }
}

TEST_CASE("the scale grows after good steps, and a norm is that of the loss itself") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}});
  const KeptReport grows = Train(program, {.steps = 7, .scale = 16, .every = 3, .compare = true});
  const KeptReport stays = Train(program, {.steps = 7, .scale = 16});
  const double scales[] = {16, 16, 16, 32, 32, 32, 64};
  for (int i = 0; i < 7; ++i) {
    CHECK(grows.steps[i].loss_scale == scales[i]);
    CHECK(stays.steps[i].loss_scale == 16);
    CHECK_FALSE(grows.steps[i].skipped);
    // Except for values below 2^-14 of a scaled gradient, whose last places differ.
    CHECK(*grows.steps[i].grad_norm == Approx(*stays.steps[i].grad_norm).epsilon(1e-3));
    CHECK(*grows.steps[i].grad_norm < 10);
  }
}

TEST_CASE("a run goes on across a skipped step") {
  const Program before = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}});
  const Program after = PlanOf({.scheme = "zb-v", .shape = {2, kMicros, 0}});
  // Skips first, and later on, where the scale has grown too far.
  const Run all = {.steps = 24, .scale = 0x1p28, .every = 3};
  const KeptReport whole = Train(before, all);
  REQUIRE(whole.status.ok());
  REQUIRE(whole.steps[1].skipped);
  int last = all.steps - 3;
  while (!whole.steps[last].skipped) --last;
  REQUIRE(last > 10);
  for (const int until : {2, 13, 14, 15, last, last + 1}) {
    INFO("until " << until);
    const Folder folder;
    Run first = all, second = all;
    first.steps = until, first.save = second.save = folder / "saves", second.resume = true;
    REQUIRE(Train(before, first).status.ok());
    const KeptReport report = Train(after, second);
    INFO(report.status.message());
    REQUIRE(report.status.ok());
    for (int i = until; i < all.steps; ++i) CheckSame(report.steps[i - until], whole.steps[i]);
  }
}

// Four skipped steps leave a new model, whose first update the next one is.
TEST_CASE("another dtype continues after skipped steps, and fp16 after it") {
  const Folder folder;
  const std::string save = folder / "saves";
  const Program half = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}});
  const Program brain = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}}, "gpt2", Dtype::kBf16);
  REQUIRE(Train(half, {.steps = 4, .scale = 1e30, .save = save}).status.ok());
  const KeptReport goes_on = Train(brain, {.steps = 8, .save = save, .resume = true});
  INFO(goes_on.status.message());
  REQUIRE(goes_on.status.ok());
  const KeptReport fresh = Train(brain, {.steps = 4, .from = 4 * kMicros * kTokens});
  for (int i = 0; i < 4; ++i) CheckSame(goes_on.steps[i], fresh.steps[i]);
  const KeptReport again = Train(half, {.steps = 9, .save = save, .resume = true});
  INFO(again.status.message());
  REQUIRE(again.status.ok());
  CHECK(again.steps[0].loss_scale == 65536);
}

TEST_CASE("in every order of work, and beside one device, the same is skipped") {
  for (const int replicas : {1, 2}) {
    const Program program = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}, .replicas = replicas});
    const Run run = {.steps = 8, .scale = 0x1p26, .compare = true};
    const KeptReport right = Train(program, run);
    REQUIRE(right.status.ok());
    REQUIRE(Skipped(right) > 0);
    for (const unsigned seed : {1, 2}) {
      const LateDevices late(seed);
      Run other = run;
      other.late = &late, other.compare = false;
      const KeptReport report = Train(program, other);
      REQUIRE(report.status.ok());
      for (int i = 0; i < run.steps; ++i) CheckSame(report.steps[i], right.steps[i]);
    }
  }
}

TEST_CASE("gradients that no scale makes finite are an error") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}});
  const auto infinite = [](StageCall* call) { call->per_token = INFINITY; };
  const KeptReport report = Train(program, {.scale = 4, .bend = infinite});
  CHECK(report.status.message() ==
        "rank 0: step 3: the gradient's norm is nan at a loss scale of 1, which cannot be halved "
        "further");
  CHECK(report.steps.size() == 2);
}

TEST_CASE("a loss that is no number is an error, whatever the scale") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {2, kMicros}});
  const KeptReport report = Train(program, {.learning_rate = 1e30});
  CHECK_THAT(report.status.message(),
             Catch::StartsWith("rank 1: step 2: loss of micro-batch 0 is "));
}

}  // namespace pp
