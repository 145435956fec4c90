// `piperun --compare`: plans that compute what one device does are accepted, whatever rounding does
// to them, and planted bugs are found and named. Catch's assertions are on this thread only, and
// plants run on the ranks' threads.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>

#include "compiler/compile.h"
#include "runtime/compare/comparison.h"
#include "runtime/device/cpu_kernels.h"
#include "runtime/model/executor.h"
#include "runtime/plan/binding.h"
#include "schema/text.h"
#include "tests/folder.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

constexpr int kSteps = 3;
const Lora kLora = {.rank = 4, .alpha = 8, .targets = {std::string(kAllLinear)}};

Program PlanOf(CompileOptions options) {
  options.job.model = SmallModel("gpt2", /*tied=*/true, /*layers=*/4);
  return MustCompile(options);
}

const Folder& Here() {
  static const Folder folder;
  return folder;
}

TrainOptions Options() {
  static const std::string data = Here().WriteText("text.txt", 4000);
  TrainOptions options;
  options.data = {data};
  options.optimizer.steps = kSteps;
  options.optimizer.learning_rate = 1e-3;
  options.stall_timeout = 60;
  options.compare = true;
  return options;
}

Status RunAndCompare(const Program& program, const TrainOptions& options, Comparison* comparison) {
  const TrainReport report = Train(program, options);
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  return Compare(program, options, report, comparison);
}

// What is reported of a run, which may have failed, without its figures.
std::string Verdict(const Program& program, const TrainOptions& options) {
  Comparison comparison;
  const Status status = Compare(program, options, Train(program, options), &comparison);
  if (status.ok()) return "the same";
  CHECK(status.code() == Code::kFailed);
  const std::string text = status.message();
  return text.substr(0, text.find(" by "));
}

// Changes calls before the executor gets them.
class BentExecutor : public StageExecutor {
 public:
  using Bend = std::function<void(StageCall*)>;
  BentExecutor(std::unique_ptr<StageExecutor> inner, Bend bend)
      : inner_(std::move(inner)), bend_(std::move(bend)) {}
  void Run(const StageCall& call) override {
    StageCall bent = call;
    bend_(&bent);
    inner_->Run(bent);
  }
  int64_t bytes() const override { return inner_->bytes(); }

 private:
  const std::unique_ptr<StageExecutor> inner_;
  const Bend bend_;
};

TrainOptions Bent(const Program& program, const BentExecutor::Bend& bend, uint64_t seed = 1) {
  TrainOptions options = Options();
  options.make_executor = [&program, bend, seed, optimizer = options.optimizer](
                              int rank) -> std::unique_ptr<StageExecutor> {
    const Place place = TopologyOf(program).PlaceOf(rank);
    return std::make_unique<BentExecutor>(MakeExecutor({.program = &program,
                                                        .device = place.device,
                                                        .replica = place.replica,
                                                        .seed = rank == 1 ? seed : 1,
                                                        .optimizer = optimizer},
                                                       MakeCpuKernels(*program.job, 1)),
                                          bend);
  };
  return options;
}

// Ranks do not exchange what instructions of this kind reduce.
TrainOptions Alone(Op op) {
  TrainOptions options = Options();
  options.after_bind = [op](int rank, BoundList* list, std::vector<CollectiveArgs>* collectives) {
    size_t next = 0;  // they are in list order
    for (const Instruction& i : list->list) {
      if (Info(i.op).lane != Lane::kReduce) continue;
      CollectiveArgs& args = (*collectives)[next++];
      if (i.op != op) continue;
      const auto me = std::find(args.group.begin(), args.group.end(), rank) - args.group.begin();
      args.shards = {args.shards[me]};
      args.group = {rank};
    }
  };
  return options;
}

}  // namespace

TEST_CASE("plans that compute what one device does do not differ") {
  struct Plan {
    CompileOptions options;
    bool same_bits;
  };
  for (const Dtype dtype : {Dtype::kFp32, Dtype::kBf16, Dtype::kFp16})
    for (Plan plan :
         {Plan{{.scheme = "1f1b", .shape = {4, 4}}, true},
          Plan{{.scheme = "zb-h1", .shape = {2, 4}}, true},
          Plan{{.scheme = "1f1b", .shape = {2, 4}, .passes = "mario"}, true},
          Plan{{.scheme = "chimera", .shape = {2, 4}}, false},
          Plan{{.scheme = "interleaved", .shape = {2, 4}, .replicas = 2}, false},
          Plan{{.scheme = "1f1b", .shape = {2, 4}, .replicas = 2, .zero = 1}, false},
          Plan{{.scheme = "chimera", .shape = {2, 4}, .zero = 1, .job = {.tp = 2}}, false},
          Plan{{.scheme = "1f1b", .shape = {2, 4}, .job = {.tp = 2}}, false},
          Plan{{.scheme = "1f1b",
          .shape = {1, 4},
          .replicas = 2,
          .job = {.tp = 2, .sequence_parallel = true}},
               false},
          Plan{{.scheme = "zb-h1", .shape = {2, 4}, .job = {.lora = kLora}}, true},
          Plan{{.scheme = "1f1b", .shape = {2, 4}, .passes = "mario", .job = {.lora = kLora}},
               true},
          Plan{{.scheme = "1f1b",
          .shape = {2, 4},
          .replicas = 2,
          .zero = 1,
          .job = {.tp = 2, .sequence_parallel = true, .lora = kLora}},
               false}}) {
      plan.options.job.dtype = dtype;
      const Program program = PlanOf(plan.options);
      Comparison comparison;
      const Status status = RunAndCompare(program, Options(), &comparison);
      INFO(plan.options.scheme << " tp " << plan.options.job.tp << " dp " << plan.options.replicas
                               << " " << NameOf(dtype) << ": " << status.message());
      CHECK(status.ok());
      CHECK(comparison.steps == kSteps);
      CHECK(comparison.worst_name.empty() == plan.same_bits);
      CHECK(comparison.worst < kCompareLimit / 2);
      // For each micro-batch an act or loss of each stage and a grad of each but one; for each
      // tensor a sum of each copy, the sum of all, and weights; the norm.
      int64_t tensors = 0;
      for (int s = 0; s < program.stages; ++s)
        for (const Tensor& tensor : LayoutStage(*program.job, s).tensors)
          tensors += tensor.trainable() ? 1 : 0;
      const int64_t micros = int64_t{program.microbatches} * program.replicas;
      const int64_t least =
          micros * (2 * program.stages - 1) + tensors * (program.Copies() + 2) + 1;
      CHECK(comparison.values >= least * kSteps);
    }
}

TEST_CASE("a sum that is left out is named") {
  const Program tied = PlanOf({.scheme = "1f1b", .shape = {2, 4}});
  CHECK(Verdict(tied, Alone(Op::kReduceTied)) ==
        "--compare: step 1: wgrad s0 transformer.wte.weight after its reductions differs from one "
        "device's");
  const Program copies = PlanOf({.scheme = "chimera", .shape = {2, 4}});
  CHECK(Verdict(copies, Alone(Op::kReduceGrad)) ==
        "--compare: step 1: wgrad s0 transformer.wpe.weight after its reductions differs from one "
        "device's");
  CHECK(Verdict(tied, Alone(Op::kReduceNorm)) ==
        "--compare: step 1: the gradient's norm is not finite, unlike one device's");
}

TEST_CASE("a swapped buffer is named") {
  const Program program = PlanOf({.scheme = "gpipe", .shape = {4, 4}});
  const auto index_of = [](const BoundList& list, const std::string& text) {
    for (size_t i = 0; i < list.list.size(); ++i)
      if (ToText(list.list[i]) == text) return i;
    PP_CHECK(false);
  };
  TrainOptions options = Options();
  options.after_bind = [&](int rank, BoundList* list, auto*) {
    if (rank == 1)  // m1's is there, and will be until its backward
      list->calls[index_of(*list, "FW s1 m2")].act_before =
          list->calls[index_of(*list, "FW s1 m1")].act_before;
  };
  CHECK(Verdict(program, options) ==
        "--compare: step 1: act s1 m2 of replica 0 differs from one device's");
  options.after_bind = [&](int rank, BoundList* list, auto*) {
    if (rank == 2)
      std::swap(list->calls[index_of(*list, "BW s2 m1")].stash,
                list->calls[index_of(*list, "BW s2 m2")].stash);
  };
  CHECK(Verdict(program, options) ==
        "--compare: step 1: grad s1 m1 of replica 0 differs from one device's");
}

TEST_CASE("a wrong factor, mask, sum or update is named") {
  const Program program = PlanOf({.scheme = "1f1b", .shape = {4, 4}});
  const auto verdict = [&](const BentExecutor::Bend& bend, uint64_t seed = 1) {
    return Verdict(program, Bent(program, bend, seed));
  };
  CHECK(verdict([](StageCall*) {}) == "the same");
  CHECK(verdict([](StageCall* call) { call->per_token *= 4; }) ==
        "--compare: step 1: grad s2 m0 of replica 0 differs from one device's");
  CHECK(verdict([](StageCall* call) { call->per_token *= 1.0001; }) ==
        "--compare: step 1: grad s2 m0 of replica 0 differs from one device's");
  CHECK(verdict([](StageCall*) {}, 2) ==
        "--compare: step 1: act s1 m0 of replica 0 differs from one device's");
  CHECK(verdict([](StageCall* call) {
          if (call->stage == 1 && call->micro == 2) call->accumulate = kernels::Update::kSet;
        }) ==
        "--compare: step 1: wgrad s1 transformer.h.1.ln_1.weight, the sum of pipe 0 of replica 0 "
        "differs from one device's");
  CHECK(verdict([](StageCall* call) {
          if (call->op == Op::kStep && call->stage == 2) call->update += 100;
        }) ==
        "--compare: step 1: weights s2 transformer.h.2.mlp.c_fc.weight after STEP differs from "
        "one "
        "device's");  // for a few elements the signs might be chance
  CHECK(verdict([](StageCall* call) {
          if (call->step == 2 && call->stage == 3) call->per_token = NAN;
        }) == "--compare: step 2: grad s2 m0 of replica 0 is not finite, unlike one device's");
  TrainOptions diverges = Options();
  diverges.optimizer.learning_rate = 1e30;
  CHECK_THAT(Verdict(program, diverges), Catch::EndsWith("is not finite on one device, either"));
}

TEST_CASE("a run that goes on is compared from where it goes on") {
  const std::string save = Here() / "save";
  Result<SaveFolder> folder = SaveFolder::Open(save);
  REQUIRE(folder.ok());
  TrainOptions options = Options();
  options.save = save;
  options.save_to = &*folder;
  Comparison comparison;
  CHECK(RunAndCompare(PlanOf({.scheme = "1f1b", .shape = {2, 4}}), options, &comparison).ok());
  options.resume = true;
  options.optimizer.steps = 2 * kSteps;
  comparison = {};
  const Program other =
      PlanOf({.scheme = "gpipe", .shape = {1, 2}, .replicas = 2, .job = {.tp = 2}});
  const Status status = RunAndCompare(other, options, &comparison);
  INFO(status.message());
  CHECK(status.ok());
  CHECK(comparison.steps == kSteps);
  CHECK(comparison.worst < kCompareLimit / 2);
}

TEST_CASE("what cannot be compared is refused") {
  CompileOptions options{.scheme = "pipedream", .shape = {2, 4}};
  options.clip = false;
  options.job.model = SmallModel("gpt2", /*tied=*/false, /*layers=*/2);
  const auto versions = Compile(options);
  REQUIRE(versions.ok());
  CHECK(Train(*versions, Options()).status.message() ==
        "--compare: the micro-batches of a step of pipedream use different weights (a scheme "
        "without versions)");
  TrainOptions many = Options();
  many.optimizer.steps = int64_t{1} << 30;
  const Status status = Train(PlanOf({.scheme = "1f1b", .shape = {2, 4}}), many).status;
  CHECK_THAT(status.message(), Catch::StartsWith("--compare: 1073741824 steps (at most "));
}

// In parts and as a whole; and close to what it estimates.
TEST_CASE("a fingerprint estimates distances") {
  std::vector<float> a(10007), b(a.size());
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = std::sin(static_cast<float>(i));
    b[i] = a[i] + 1e-3f * std::cos(static_cast<float>(3 * i));
    squares += (double{b[i]} - a[i]) * (double{b[i]} - a[i]);
  }
  Fingerprint of_a, of_b, parts, rest;
  of_a.Add(a.data(), 0, 10007);
  of_b.Add(b.data(), 0, 10007);
  parts.Add(a.data(), 0, 4001);
  rest.Add(a.data() + 4001, 4001, 6006);
  parts.Add(rest);
  CHECK(parts.numbers == of_a.numbers);
  CHECK(parts.squares == Approx(of_a.squares));
  CHECK(Distance(parts, of_a) < 1e-9);
  CHECK(Distance(of_a, of_b) == Approx(std::sqrt(squares)).epsilon(0.5));
  std::swap(a[17], a[18]);
  Fingerprint swapped;
  swapped.Add(a.data(), 0, 10007);
  CHECK(Distance(swapped, of_a) > 0.1);  // it is 0.3
}

}  // namespace pp
