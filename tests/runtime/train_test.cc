// The training loop on an executor that checks every value: schedules, transports of threads,
// starting, stopping and failing together.
#include "runtime/run/train.h"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>

#include "compiler/compile.h"
#include "tests/checking_executor.h"
#include "tests/kept_report.h"
#include "tests/models.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

struct Plan {
  const char* scheme = "1f1b";
  int devices = 2;
  int microbatches = 4;
  P2p p2p = P2p::kAsync;
};

Program MakeProgram(const Plan& plan) {
  CompileOptions options;
  options.scheme = plan.scheme;
  options.shape = {
      .devices = plan.devices, .microbatches = plan.microbatches, .stages_per_device = 0};
  options.p2p = plan.p2p;
  options.job.model = SmallModel("gpt2", /*tied=*/true, /*layers=*/8);
  return MustCompile(options);
}

// Tokens of the model, no two sequences the same.
std::string DataFile() {
  static const std::string path = [] {
    const auto file = std::filesystem::temp_directory_path() /
                      ("train_test." + std::to_string(getpid()) + ".txt");
    std::ofstream out(file, std::ios::binary);
    for (int i = 0; i < 4000; ++i) out.put(static_cast<char>(1 + i * i % 47));
    return file.string();
  }();
  return path;
}

// Collects what went wrong on any thread.
class Harness {
 public:
  explicit Harness(Program program) : program(std::move(program)) {
    options.data = {DataFile()};
    options.optimizer.steps = 3;
    const int length = this->program.job->sequence_length;
    auto opened = Dataset::Open(options.data, {.vocab_size = 50, .sequence_length = length});
    REQUIRE(opened.ok());
    dataset = std::make_unique<Dataset>(std::move(*opened));
    batches = std::make_unique<Batches>(Batches::Args{.dataset = dataset.get(),
                                                      .microbatches = this->program.microbatches,
                                                      .sequence_length = length});
    executor.program = &this->program;
    executor.batches = batches.get();
    executor.fail = [this](const std::string& text) {
      std::lock_guard<std::mutex> lock(mutex_);
      failures.push_back(text);
    };
    options.make_executor = [this](int) { return std::make_unique<CheckingExecutor>(executor); };
  }
  KeptReport Run() { return TrainAndKeep(program, options); }

  Program program;
  TrainOptions options;
  CheckingExecutor::Args executor;
  std::unique_ptr<Dataset> dataset;
  std::unique_ptr<Batches> batches;
  std::vector<std::string> failures;

 private:
  std::mutex mutex_;
};

TEST_CASE("every value arrives, whatever the schedule") {
  const char* scheme = GENERATE("gpipe", "1f1b", "interleaved");
  const int devices = GENERATE(1, 2, 4);
  const int microbatches = GENERATE(4, 8);
  const P2p p2p = GENERATE(P2p::kAsync, P2p::kBlocking);
  INFO(scheme << " D=" << devices << " M=" << microbatches << " p2p " << static_cast<int>(p2p));
  Harness harness(MakeProgram({scheme, devices, microbatches, p2p}));
  harness.options.record = true;
  const KeptReport report = harness.Run();
  INFO(report.status.message());
  REQUIRE(report.status.ok());
  CHECK(harness.failures == std::vector<std::string>());
  REQUIRE(report.steps.size() == 3);
  const double tokens = microbatches * 8.0;
  CHECK(report.steps[2].loss == microbatches * (microbatches + 1) / 2 / tokens);
  CHECK(report.last_step == 3);
  // The plan's memory is the run's.
  for (int d = 0; d < devices; ++d)
    CHECK(report.steps[2].peak_bytes[d] == harness.program.lists[d].arena_bytes);
  // Every instruction is in the trace, once per step.
  size_t instructions = 0;
  for (const DeviceList& list : harness.program.lists) instructions += list.body.size();
  CHECK(report.events.size() == 3 * instructions);
}

TEST_CASE("a lane's events stand in list order") {
  Harness harness(MakeProgram({.devices = 4}));
  harness.options.record = true;
  const KeptReport report = harness.Run();
  REQUIRE(report.status.message() == "");
  for (int d = 0; d < 4; ++d) {
    int last = -1, seen = 0;
    double end = 0;
    for (const Event& event : report.events) {
      if (event.device != d || event.step != 2) continue;
      const Op op = harness.program.lists[d].body[event.index].op;
      if (Info(op).lane != Lane::kCompute) continue;
      CHECK(event.index > last);
      CHECK(event.start >= end);
      ++seen;
      last = event.index;
      end = event.start;
    }
    const auto& body = harness.program.lists[d].body;
    CHECK(seen == std::count_if(body.begin(), body.end(), [](const Instruction& i) {
            return Info(i.op).lane == Lane::kCompute;
          }));
  }
}

TEST_CASE("a NaN loss stops all ranks and says where") {
  Harness harness(MakeProgram({.devices = 4}));
  harness.executor.loss_of_micro_1 = NAN;
  const KeptReport report = harness.Run();
  CHECK(report.status.code() == Code::kFailed);
  CHECK_THAT(report.status.message(),
             Catch::StartsWith("rank 3: step 1: loss of micro-batch 1 is nan ('FW s3 m1', "
                               "instruction "));
  CHECK(report.steps.empty());
}

TEST_CASE("a request stops all ranks after a common step") {
  Harness harness(MakeProgram({.devices = 4}));
  harness.options.optimizer.steps = 1000000;
  std::atomic<int> requests{0};
  harness.options.stop_requests = &requests;
  harness.options.on_step = [&](const StepReport& step) -> Status {
    if (step.step == 5) requests = 1;
    return {};
  };
  const KeptReport report = harness.Run();
  CHECK(report.status.ok());
  CHECK(report.last_step >= 5);
  CHECK(report.last_step < 1000000);
  CHECK(report.steps.size() == static_cast<size_t>(report.last_step));
}

TEST_CASE("an error of the caller stops all ranks") {
  Harness harness(MakeProgram({.devices = 4}));
  harness.options.optimizer.steps = 1000000;
  harness.options.on_step = [](const StepReport& step) {
    return step.step == 2 ? Status::Failed("log.jsonl: the disk is full") : Status();
  };
  CHECK(harness.Run().status.message() == "log.jsonl: the disk is full");
}

TEST_CASE("a run that does not go on ends with what each rank is at") {
  Harness harness(MakeProgram({.devices = 2}));
  harness.options.stall_timeout = 0.3;
  std::promise<void> stalled;
  auto wait = stalled.get_future().share();
  harness.executor.before = [&](const StageCall& at) {
    if (at.op == Op::kBackward && at.stage == 1 && at.micro == 1 && at.step == 2) wait.wait();
  };
  // It is reported immediately: the kernel that hangs must end before the run can.
  std::string said;
  harness.options.on_failure = [&](const Status& status) {
    said = status.message();
    stalled.set_value();
  };
  const KeptReport report = harness.Run();
  CHECK(report.status.code() == Code::kFailed);
  CHECK(said == report.status.message());
  CHECK(
      said ==
      "no progress for 0.3 s: rank 0 at 'WAIT grad s0 m1 from rank 1' of step 2; rank 1 at 'BW s1 "
      "m1' of step 2");
}

TEST_CASE("a rank that hangs when the others have finished ends with them") {
  Harness harness(MakeProgram({.devices = 4}));
  harness.options.stall_timeout = 0.3;
  std::promise<void> stalled;
  auto wait = stalled.get_future().share();
  harness.executor.before = [&](const StageCall& at) {
    if (at.op != Op::kStep || at.stage != 3 || at.step != 3) return;
    wait.wait();
    // Longer than the others wait for its goodbye.
    std::this_thread::sleep_for(std::chrono::milliseconds(3300));
  };
  harness.options.on_failure = [&](const Status&) { stalled.set_value(); };
  CHECK(harness.Run().status.message() ==
        "no progress for 0.3 s: rank 0 at 'STEP s0' of step 3; rank 1 has finished; rank 2 has "
        "finished; rank 3 at 'STEP s3' of step 3");
}

TEST_CASE("a caller that does not come back is found stuck") {
  Harness harness(MakeProgram({.devices = 1}));
  std::promise<void> held;
  auto wait = held.get_future().share();
  std::atomic<int> requests{0};
  harness.options.stop_requests = &requests;
  harness.options.on_step = [&](const StepReport&) -> Status {
    requests = 2;
    wait.wait();
    return {};
  };
  harness.options.grace = 0.2;
  bool stuck = false;
  harness.options.on_stuck = [&] {
    if (!std::exchange(stuck, true)) held.set_value();
  };
  CHECK(harness.Run().status.message() == "stopped in the middle of a step");
  CHECK(stuck);
}

TEST_CASE("a plan that cannot run is refused") {
  Program program = MakeProgram({.devices = 4});
  CHECK(CheckRunnable(program, "x.plan", 4).ok());
  CHECK(CheckRunnable(program, "x.plan", 3).message() ==
        "x.plan: compiled for 4 devices, started with 3 ranks (mpiexec -n 4)");
  program.job.reset();
  CHECK_THAT(CheckRunnable(program, "x.plan", 4).message(),
             Catch::StartsWith("x.plan: compiled without a model"));
}

}  // namespace
}  // namespace pp
